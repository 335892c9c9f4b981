//! From the text of a file to rules.

use std::collections::BTreeMap;
use std::collections::hash_map::{Entry, HashMap};
use std::hash::Hash;
use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::Arc;

use ringfence_tls::Name;
use ringfence_wire::PrincipalName;
use serde::Deserialize;
use toml::Spanned;

use crate::Error;
use crate::credential::Digest;
use crate::pattern::Pattern;
use crate::principal::{Allowed, Principal};
use crate::rights::{ClusterRight, KeyRight};
use crate::rules::Rules;

/// The most patterns of a principal. A request may be compared with all of them.
const MAX_PATTERNS: usize = 64;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    principals: BTreeMap<Spanned<String>, Entries>,
    #[serde(default)]
    anonymous: Anonymous,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entries {
    #[serde(default)]
    credentials: Vec<Spanned<String>>,
    #[serde(default)]
    certificates: Vec<Spanned<String>>,
    #[serde(default)]
    allow: Vec<Spanned<Allow>>,
    #[serde(default)]
    cluster: Vec<ClusterRight>,
    #[serde(default)]
    limits: Limits,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Anonymous {
    allow: Vec<Spanned<Allow>>,
    cluster: Vec<ClusterRight>,
    limits: Limits,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Limits {
    leases: Option<NonZeroU32>,
    waiting: Option<NonZeroU32>,
    lease_bytes: Option<NonZeroU32>,
    requests_per_s: Option<NonZeroU32>,
    watches: Option<NonZeroU32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Allow {
    keys: String,
    may: Vec<KeyRight>,
}

/// What is wrong, and where.
type Wrong = (Range<usize>, String);

impl Rules {
    /// Reads the text of a file.
    ///
    /// # Errors
    /// It is not valid, or ambiguous.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let line = |span: Range<usize>| {
            text.as_bytes().iter().take(span.start).filter(|byte| **byte == b'\n').count() + 1
        };
        let file: File = toml::from_str(text).map_err(|error| Error {
            line: error.span().map_or(1, line),
            why: without_values(error.message()),
        })?;
        checked(file).map_err(|(span, why)| Error { line: line(span), why })
    }
}

/// `message` without the text between its first and its last quotation mark, which stands in the file.
fn without_values(message: &str) -> String {
    match (message.find('"'), message.rfind('"')) {
        (Some(first), Some(last)) if first < last => {
            format!("{}…{}", &message[..first], &message[last + 1..])
        }
        _ => message.to_owned(),
    }
}

fn checked(file: File) -> Result<Rules, Wrong> {
    let (mut by_credential, mut by_certificate) = (HashMap::new(), HashMap::new());
    for (name, entries) in file.principals {
        let span = name.span();
        let name = checked_name(&name.into_inner()).map_err(|why| (span.clone(), why.to_owned()))?;
        if entries.credentials.is_empty() && entries.certificates.is_empty() {
            return Err((span, format!("{name} has neither credentials nor certificates")));
        }
        let principal = Arc::new(principal(Some(name), entries.allow, entries.cluster, entries.limits)?);
        for credential in entries.credentials {
            let digest = Digest::parse(credential.get_ref()).ok_or_else(|| {
                let why = "a credential must be `sha256:` and 64 hexadecimal digits, as `ringfence access credential` prints them";
                (credential.span(), why.to_owned())
            })?;
            put(&mut by_credential, digest, &principal)
                .map_err(|()| (credential.span(), "this credential stands in the file twice".to_owned()))?;
        }
        for certificate in entries.certificates {
            let name = certificate_name(certificate.get_ref()).ok_or_else(|| {
                let why =
                    "a certificate must be `dns:`, `uri:` or `ip:`, followed by a name that stands in it";
                (certificate.span(), why.to_owned())
            })?;
            put(&mut by_certificate, name, &principal)
                .map_err(|()| (certificate.span(), "this name stands in the file twice".to_owned()))?;
        }
    }
    let File { anonymous, .. } = file;
    let anonymous = Arc::new(principal(None, anonymous.allow, anonymous.cluster, anonymous.limits)?);
    Ok(Rules { by_credential, by_certificate, anonymous })
}

fn checked_name(name: &str) -> Result<PrincipalName, &'static str> {
    if name == "anonymous" {
        return Err("no principal can be called anonymous: use the table [anonymous]");
    }
    PrincipalName::new(name).ok_or(
        "the name of a principal must have 1 to 64 characters of a-z 0-9 . _ - and begin with a letter or digit",
    )
}

fn principal(
    name: Option<PrincipalName>,
    allow: Vec<Spanned<Allow>>,
    cluster: Vec<ClusterRight>,
    limits: Limits,
) -> Result<Principal, Wrong> {
    if let Some(extra) = allow.get(MAX_PATTERNS) {
        return Err((
            extra.span(),
            format!("a principal can have at most {MAX_PATTERNS} entries in `allow`"),
        ));
    }
    let allowed = allow.into_iter().map(|allow| {
        let span = allow.span();
        let Allow { keys, may } = allow.into_inner();
        match Pattern::parse(&keys) {
            Ok(_) if may.is_empty() => Err((span, "`may` names no right".to_owned())),
            Ok(keys) => Ok(Allowed { keys, may }),
            Err(why) => Err((span, format!("`keys` {why}"))),
        }
    });
    let Limits { leases, waiting, lease_bytes, requests_per_s, watches } = limits;
    let limits = ringfence_wire::Limits { leases, waiting, lease_bytes, requests_per_s, watches };
    Ok(Principal { name, allowed: allowed.collect::<Result<_, _>>()?, cluster, limits })
}

fn certificate_name(text: &str) -> Option<Name> {
    let (kind, name) = text.split_once(':')?;
    match kind {
        _ if name.is_empty() || name.contains(char::is_whitespace) => None,
        // Names are compared as they stand in a certificate, where `*.` has no special meaning for clients.
        "dns" if !name.starts_with("*.") => Some(Name::Dns(name.to_ascii_lowercase())),
        "uri" => Some(Name::Uri(name.to_owned())),
        "ip" => name.parse().ok().map(Name::Ip),
        _ => None,
    }
}

fn put<T: Eq + Hash>(
    all: &mut HashMap<T, Arc<Principal>>,
    name: T,
    principal: &Arc<Principal>,
) -> Result<(), ()> {
    match all.entry(name) {
        Entry::Occupied(_) => Err(()),
        Entry::Vacant(free) => {
            free.insert(Arc::clone(principal));
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Credential, Proof, Unidentified};

    const NONE: &str = "sha256:0000000000000000000000000000000000000000000000000000000000000000";

    fn key(text: &str) -> ringfence_wire::Key {
        ringfence_wire::Key::new(text).unwrap()
    }

    #[test]
    fn principals_have_the_rights_that_the_file_gives_them() {
        let (billing, other) = (Credential::of([1; 32]), Credential::of([2; 32]));
        let rules = Rules::parse(&format!(
            r#"
            [principals.billing]
            credentials = ["{}", "{NONE}"]
            certificates = ["dns:Billing.example", "uri:spiffe://prod/billing", "ip:10.0.0.1"]
            allow = [{{ keys = "accounts/", may = ["acquire", "read"] }}, {{ keys = "=once", may = ["revoke"] }}]
            [principals."a.b"]
            credentials = ["{}"]
            cluster = ["operate"]
            [anonymous]
            allow = [{{ keys = "*", may = ["validate"] }}]
            "#,
            billing.digest(),
            other.digest(),
        ))
        .unwrap();
        let shown = |credential: Option<&str>, names: &[Name]| {
            let credential = credential.map(|credential| Digest::of(credential.as_bytes()));
            rules.identify(&Proof { credential, certificate: names.into() })
        };
        let own = shown(Some(billing.reveal()), &[]).unwrap();
        assert_eq!(own.name().map(PrincipalName::as_str), Some("billing"));
        assert!(own.may(KeyRight::Validate, &key("accounts/1")) && own.may(KeyRight::Revoke, &key("once")));
        assert!(
            !own.may(KeyRight::Revoke, &key("accounts/1")) && !own.may(KeyRight::Acquire, &key("accounts"))
        );
        assert!(own.may_under(KeyRight::Read, "accounts/1") && !own.may_under(KeyRight::Read, "account"));
        assert!(!own.may_with_cluster(ClusterRight::Observe));
        for name in [
            Name::Dns("billing.example".into()),
            Name::Uri("spiffe://prod/billing".into()),
            Name::Ip([10, 0, 0, 1].into()),
        ] {
            assert_eq!(
                shown(None, std::slice::from_ref(&name)).unwrap().name().map(PrincipalName::as_str),
                Some("billing")
            );
            assert_eq!(
                shown(Some(billing.reveal()), std::slice::from_ref(&name))
                    .unwrap()
                    .name()
                    .map(PrincipalName::as_str),
                Some("billing")
            );
            assert_eq!(shown(Some(other.reveal()), &[name]).unwrap_err(), Unidentified::TwoPrincipals);
        }
        let operator = shown(Some(other.reveal()), &[Name::Dns("unknown".into())]).unwrap();
        assert!(
            operator.may_with_cluster(ClusterRight::Observe)
                && !operator.may_with_cluster(ClusterRight::Metrics)
        );
        let anonymous = shown(None, &[]).unwrap();
        assert_eq!(anonymous.name(), None);
        assert!(anonymous.may(KeyRight::Validate, &key("x")) && !anonymous.may_somewhere(KeyRight::Acquire));
        assert_eq!(shown(Some("guess"), &[]).unwrap_err(), Unidentified::UnknownCredential);
    }

    #[test]
    fn limits_are_those_of_the_file_and_by_default_there_are_none() {
        let credentials = [Credential::of([1; 32]), Credential::of([2; 32])];
        let [limited, free] = credentials.map(|credential| Some(credential.digest()));
        let text = format!(
            "[anonymous]\nlimits = {{ watches = 3 }}\n\
             [principals.a]\ncredentials = [\"{}\"]\n\
             limits = {{ leases = 9, waiting = 3, lease-bytes = 900, requests-per-s = 2_000, watches = 20 }}\n\
             [principals.b]\ncredentials = [\"{}\"]",
            limited.unwrap(),
            free.unwrap()
        );
        let rules = Rules::parse(&text).unwrap();
        let limits = |credential| {
            let limits = rules.identify(&Proof { credential, ..Proof::default() }).unwrap().limits();
            [limits.leases, limits.waiting, limits.lease_bytes, limits.requests_per_s, limits.watches]
                .map(|limit| limit.map(NonZeroU32::get))
        };
        assert_eq!(limits(limited), [Some(9), Some(3), Some(900), Some(2_000), Some(20)]);
        assert_eq!(limits(free), [None; 5]);
        assert_eq!(limits(None), [None, None, None, None, Some(3)]);
    }

    #[test]
    fn nothing_is_allowed_by_default() {
        let rules = Rules::parse("").unwrap();
        let anonymous = rules.identify(&Proof::default()).unwrap();
        assert!(KeyRight::ALL.iter().all(|right| !anonymous.may_somewhere(*right)));
        assert!(ClusterRight::ALL.iter().all(|right| !anonymous.may_with_cluster(*right)));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line_and_not_quoted() {
        let with = |line: &str| format!("[principals.a]\ncredentials = [\"{NONE}\"]\n{line}\n");
        let secret = "s3cret-pa55word";
        for (text, line, why) in [
            (with("credentails = []"), 3, "credentails"),
            (with("limits = { requests-per-s = 0 }"), 3, "zero"),
            (with("limits = { watches = -1 }"), 3, "-1"),
            (with("limits = { lease = 1 }"), 3, "lease"),
            ("[anonymous]\nlimits = { lease = 1 }".to_owned(), 2, "lease"),
            (with(&format!("certificates = \"{secret}\"")), 3, "expected"),
            (with(&format!("certificates = [\"{secret}\"]")), 3, "dns:"),
            (with("certificates = [\"dns:*.example\"]"), 3, "dns:"),
            (with("certificates = [\"dns:a\",\n\"dns:A\"]"), 4, "twice"),
            (with(&format!("allow = [{{ keys = \"{secret}\", may = [\"read\"] }}]")), 3, "`keys`"),
            (with("allow = [{ keys = \"a/\", may = [] }]"), 3, "`may`"),
            (with("allow = [{ keys = \"a/\", may = [\"write\"] }]"), 3, "write"),
            (with("allow = [{ keys = \"a/\" }]"), 3, "may"),
            (with("cluster = [\"admin\"]"), 3, "admin"),
            (with(&format!("allow = [{}]", "{ keys = \"a/\", may = [\"read\"] },".repeat(65))), 3, "64"),
            (with(&format!("[principals.b]\ncredentials = [\"{NONE}\"]")), 4, "twice"),
            (with("[principals.b]"), 3, "neither"),
            (with("[principals.B]"), 3, "characters"),
            (with("[principals.anonymous]"), 3, "anonymous"),
            (format!("[principals.a]\ncredentials = [\"{secret}\"]"), 2, "sha256:"),
            (format!("[principals.a]\ncredentials = {secret}"), 2, ""),
            ("[anonymous]\ncredentials = []".into(), 2, "credentials"),
            ("[principals".into(), 1, ""),
        ] {
            let error = Rules::parse(&text).expect_err(&text);
            assert!(error.line == line && error.why.contains(why), "{text}: {error}");
            assert!(!error.to_string().contains(secret), "{error}");
        }
    }

    /// A valid file with pieces of it replaced by others.
    fn changed() -> impl Strategy<Value = String> {
        let digest = Credential::of([1; 32]).digest();
        let whole = format!(
            "[principals.a]\ncredentials = [\"{digest}\"]\ncertificates = [\"dns:a.example\"]\n\
             allow = [{{ keys = \"a/\", may = [\"acquire\", \"read\"] }}, {{ keys = \"=b\", may = [\"revoke\"] }}]\n\
             cluster = [\"metrics\"]\n[anonymous]\nallow = [{{ keys = \"*\", may = [\"validate\"] }}]\n"
        );
        let pieces: Vec<_> =
            "[ ] { } = , \" \n keys \"*\" sha256: [principals.b]\n \\u0000".split(' ').collect();
        let new = prop_oneof![prop::sample::select(pieces).prop_map(str::to_owned), "\\PC{0,4}"];
        prop::collection::vec((any::<prop::sample::Index>(), 0..12_usize, new), 1..4).prop_map(move |edits| {
            let mut text: Vec<char> = whole.chars().collect();
            for (at, gone, new) in edits {
                let at = at.index(text.len() + 1);
                let end = text.len().min(at + gone);
                text.splice(at..end, new.chars());
            }
            text.into_iter().collect()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_text_makes_it_panic(text in "(\\PC|\n|\\[principals\\.a\\]|credentials = |allow = |keys|\"|\\{|\\})*") {
            let _ = Rules::parse(&text);
        }

        #[test]
        fn a_changed_file_is_refused_without_its_secrets_or_works(text in changed()) {
            match Rules::parse(&text) {
                Err(error) => {
                    prop_assert!(error.line <= text.lines().count() + 1, "{error}");
                    let (error, digest) = (error.to_string(), Credential::of([1; 32]).digest().to_string());
                    let mut digits = digest.as_bytes()[7..].windows(12);
                    prop_assert!(digits.all(|some| !error.as_bytes().windows(12).any(|piece| piece == some)), "{error}");
                }
                Ok(rules) => {
                    prop_assert!(rules.identify(&Proof::default()).is_ok_and(|anonymous| anonymous.name().is_none()));
                }
            }
        }
    }
}
