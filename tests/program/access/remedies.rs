//! What the command line says to a client that lacks a credential, or a right.

use std::process::Command;

use super::guarded::{guarded, new};
use crate::support::{PROGRAM, rules_of};

#[tokio::test]
async fn who_lacks_a_credential_or_a_right_learns_what_mends_that() {
    let billing = new();
    let allow = "allow = [{ keys = \"accounts/\", may = [\"acquire\", \"read\"] }, { keys = \"=config\", may = [\"read\"] }]";
    let guarded = guarded(&rules_of("billing", &billing, allow), &[]).await;
    let said = |credential: Option<&str>, words: &[&str]| {
        let mut command = Command::new(PROGRAM);
        command.env("RINGFENCE_URLS", format!("https://{}", guarded.cluster.node(1).http()));
        command.env("RINGFENCE_AUTHORITY", guarded.path("authority.pem"));
        command.envs(credential.map(|credential| ("RINGFENCE_CREDENTIAL", credential)));
        let output = command.args(words).output().unwrap();
        assert!(!output.status.success(), "{words:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    for words in [&["get", "accounts/1"][..], &["lock", "accounts/1", "--", "true"]] {
        let without = said(None, words);
        assert!(without.contains("RINGFENCE_CREDENTIAL, which is not set"), "{without}");
        let wrong = said(Some("rfc_wrong"), words);
        assert!(wrong.contains("the credential in RINGFENCE_CREDENTIAL"), "{wrong}");
    }
    // A command under a lock does not get the variable.
    let nested = ["lock", "accounts/1", "--", PROGRAM, "get", "accounts/1"];
    let nested = said(Some(billing.reveal()), &nested);
    assert!(nested.contains("`ringfence lock` and `hold` take away"), "{nested}");

    let listed = said(Some(billing.reveal()), &["ls"]);
    assert!(listed.contains("`ringfence ls accounts/`, `ringfence get config`"), "{listed}");
}
