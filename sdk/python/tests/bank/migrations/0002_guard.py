from django.db import migrations

from ringfence.django import InstallGuard, ProtectTable


class Migration(migrations.Migration):
    dependencies = [("bank", "0001_initial")]
    operations = [InstallGuard(), ProtectTable("account", "accounts/", "id", by_connection=True)]
