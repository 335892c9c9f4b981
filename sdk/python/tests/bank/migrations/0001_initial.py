from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    operations = [
        migrations.CreateModel(
            "Account", [("id", models.IntegerField(primary_key=True)), ("balance", models.IntegerField())]
        ),
    ]
