//! Each disaster of docs/operations.md, with real processes, and the commands of the document that mend it: once without TLS, and
//! once with TLS and access rules.
//!
//! A machine of the document, 10.0.0.N, is a port here, and a folder that stands for its `/etc` and `/var`. Only the service
//! manager and what copies files between machines are stand-ins (`machines.sh`).

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ringfence_harness::{Cluster, may_mount, run};

use crate::support::PROGRAM;

const DOCUMENT: &str = include_str!("../../docs/operations.md");
const MACHINES: &str = include_str!("machines.sh");
/// Far longer than any of this takes.
const TEN_MINUTES: Duration = Duration::from_secs(600);

/// Commands that other sections end with, by a link.
const FOUND: (&str, &str) = ("Found the new cluster", "(#found-the-new-cluster)");
/// Commands that other sections begin with, by a link.
const CERTIFY: (&str, &str) = ("Give a node certificates", "(#give-a-node-certificates)");

/// A section of the document with commands: what happens before them, and what must be true afterwards.
struct Walk {
    section: &'static str,
    before: &'static str,
    after: &'static str,
}

/// Those that are played in both ways.
const ALL: &[Walk] = &[
    Walk { section: "Commands", before: "", after: "votes 1 2 3" },
    Walk {
        section: "Back up",
        before: "acquire a",
        after: "ringfence backup inspect -o json $R/0/var/backups/ringfence.json | jq -e \".revision >= $TOKEN\"",
    },
    Walk { section: "Restart", before: "acquire a", after: "votes 1 2 3; keeps" },
    Walk { section: "Change the members", before: "acquire a", after: "votes 2 3 4; keeps" },
    Walk {
        section: "A node does not run",
        before: "acquire a; on 3 systemctl kill --signal=KILL ringfence",
        after: "ready 3; keeps",
    },
    Walk {
        section: "A node hangs",
        before: "acquire a; on 3 systemctl kill --signal=STOP ringfence; acquire b",
        after: "ready 3; keeps",
    },
    Walk {
        section: "A machine does not answer",
        before: "acquire a; on 3 systemctl kill --signal=STOP ringfence",
        after: "votes 1 2 4; keeps; on 3 systemctl kill --signal=CONT ringfence; refused 3; votes 1 2 4; keeps",
    },
    Walk {
        section: "A disk is lost, or a log is damaged",
        before: "acquire a; on 3 systemctl kill --signal=KILL ringfence; rm -r $R/3/var/lib/ringfence/*",
        after: "votes 1 2 3; keeps",
    },
    Walk {
        section: "A disk is lost, or a log is damaged",
        before: "acquire a; on 3 systemctl stop ringfence; damage 3; on 3 systemctl start ringfence; ended 3 'log is damaged'",
        after: "votes 1 2 3; keeps",
    },
    Walk {
        section: "Two of three nodes are lost",
        before: "acquire a; on 3 systemctl kill --signal=STOP ringfence; acquire b; lose 1; lose 2",
        after: "votes 1 2 3; grants_more; on 1 systemctl restart ringfence; votes 1 2 3",
    },
    // A member that was added later knows no list of the members, and must not found a cluster alone.
    Walk {
        section: "Two of three nodes are lost",
        before: "acquire a; ringfence cluster remove 1; lose 1; joiner 1; ringfence cluster add 1 $HOST:7521
                 votes 1 2 3; acquire b; lose 1; lose 2",
        after: "votes 1 2 3; grants_more",
    },
    Walk {
        section: "All nodes are lost",
        // The settings of an earlier founding must not be used again.
        before: "acquire a; ringfence backup save $R/8/var/backups/ringfence.json; lose 1; lose 2; lose 3
                 for n in 1 2 3; do echo RINGFENCE_FIRST_REVISION=1 >> $R/$n/etc/default/ringfence; done",
        after: "votes 1 2 3; grants_more; are_clean",
    },
    Walk {
        section: "Redis is lost",
        before: "on 9 systemctl start redis-server
                 for n in 1 2 3; do
                   echo RINGFENCE_REDIS=redis://$HOST:7429 >> $R/$n/etc/default/ringfence
                   on $n systemctl restart ringfence
                 done
                 votes 1 2 3; acquire a; mirrored
                 on 9 systemctl kill --signal=KILL redis-server",
        after: "mirrored; keeps",
    },
    Walk {
        section: "The wrong node was removed",
        before: "acquire a; ringfence cluster remove 2",
        after: "votes 1 2 3; keeps",
    },
    Walk {
        section: "The wrong node was added",
        before: "acquire a; joiner 4; ringfence cluster add 4 $HOST:7524; votes 1 2 3 4",
        after: "votes 1 2 3; keeps; [ -z \"$(ls $R/4/var/lib/ringfence)\" ]",
    },
    Walk {
        section: "A forced removal stopped the cluster",
        before: "acquire a; on 3 systemctl kill --signal=KILL ringfence
                 said=$(ringfence cluster remove 2 2>&1) && exit 1
                 [[ $said == *'does not hear 3'* ]]
                 ringfence cluster remove 2 --force && exit 1",
        after: "votes 1 3; keeps",
    },
];

/// Without TLS only.
const PLAIN: &[Walk] = &[
    Walk {
        section: "TLS between nodes",
        before: "acquire a",
        after: "again() { on $1 systemctl restart ringfence; ready $1; keeps; }
                for n in 1 2 3; do
                  printf 'RINGFENCE_PEER_%s\n' CERTIFICATE=$R/certificates/node-$n-peer.pem \
                    KEY=$R/certificates/node-$n-peer.key AUTHORITY=$R/certificates/node-authority.pem PLAIN=accept >> $R/$n/etc/default/ringfence
                  again $n
                done
                for n in 1 2 3; do sed -i /PEER_PLAIN/d $R/$n/etc/default/ringfence; again $n; done
                votes 1 2 3",
    },
];

/// With TLS only.
const SECURED: &[Walk] = &[
    Walk { section: "A year later", before: "acquire a", after: "lasts 1 2 3; votes 1 2 3; keeps" },
    // After the end, nobody leads.
    Walk {
        section: "A year later",
        before: "acquire a; outdate; ended_for 1; ended_for 2; ended_for 3; ! is_ready 1",
        after: "lasts 1 2 3; votes 1 2 3; keeps",
    },
    Walk {
        section: "Replace the authorities",
        before: "acquire a; old=$(cat certificates/authority.pem certificates/node-authority.pem)",
        after: "lasts 1 2 3; votes 1 2 3; keeps
                [ \"$old\" != \"$(cat certificates/authority.pem certificates/node-authority.pem)\" ]
                for n in 1 2 3; do
                  cmp certificates/authority.pem $R/$n/etc/ringfence/authority.pem
                  cmp certificates/node-authority.pem $R/$n/etc/ringfence/node-authority.pem
                  cmp certificates/node-$n-peer.pem $R/$n/etc/ringfence/node-peer.pem
                done
                cmp certificates/authority.pem $R/0/etc/ringfence/authority.pem",
    },
];

/// A disk of its own can be full.
const FULL: Walk = Walk {
    section: "A disk is full",
    before: "acquire a; on 3 systemctl stop ringfence; fill 3; on 3 systemctl start ringfence; flood; ended 3 'No space left'; free 3",
    after: "ready 3; keeps",
};

impl Walk {
    /// The commands of the section, and of those that it begins and ends with.
    fn commands(&self, with_tls: bool) -> String {
        let text = text_of(self.section);
        let linked = |(section, link): (&str, &str)| match text.contains(link) {
            true => script_of(text_of(section), with_tls),
            false => String::new(),
        };
        linked(CERTIFY) + &script_of(text, with_tls) + &linked(FOUND)
    }

    async fn play(&self, with_tls: bool) {
        // Its address is free for the machines, which use other ports.
        let claimed = Cluster::builder(PROGRAM).lay_out().await.unwrap();
        let host = claimed.node(1).http().ip();
        let dir = tempfile::tempdir().unwrap();
        let Self { before, after, .. } = self;
        let script = format!(
            "{MACHINES}\n{before}\n# As other shells, which do not expand braces.\nset +B -x\n{}\nset -B +x\n{after}\necho mended\n",
            self.commands(with_tls)
        );
        let file = dir.path().join("walk.sh");
        std::fs::write(&file, script).unwrap();
        let settings = [
            ("HOST", host.to_string()),
            ("R", path(dir.path())),
            ("PROGRAM", PROGRAM.to_owned()),
            ("SECURED", if with_tls { "yes".to_owned() } else { String::new() }),
        ];
        let arguments = settings.into_iter().map(|(name, value)| format!("{name}={value}"));
        // What is mounted goes with the processes.
        let own = if self.section == FULL.section { &["unshare", "--mount", "bash"][..] } else { &["bash"] };
        let arguments = arguments.chain(own.iter().map(|word| (*word).to_owned())).chain([path(&file)]);
        let ended = run("env", arguments, TEN_MINUTES).await.unwrap();
        let mended = ended.status.success() && ended.output.lines().any(|line| line == "mended");
        assert!(mended, "{}, with TLS: {with_tls}: {before}\n{}", self.section, ended.output);
    }
}

/// The text of a section.
fn text_of(section: &str) -> &'static str {
    let begin = DOCUMENT.find(&format!("# {section}\n")).unwrap();
    let text = &DOCUMENT[begin..];
    &text[..text.find("\n##").unwrap_or(text.len())]
}

/// The commands in a text. A comment such as `# on 10.0.0.1, 10.0.0.2` has those up to the end of the block run on each of
/// these machines. One that ends in `with TLS` or `without TLS` has them run only then.
fn script_of(text: &str, with_tls: bool) -> String {
    let mut script = String::new();
    for block in text.split("```sh\n").skip(1) {
        let block = block.split_once("```").unwrap().0;
        let marks =
            block.strip_prefix("# ").and_then(|rest| rest.split_once('\n')).map_or("", |(marks, _)| marks);
        let is_for = |way: &str| marks == way || marks.ends_with(&format!(", {way}"));
        if is_for(if with_tls { "without TLS" } else { "with TLS" }) {
            continue;
        }
        match marks.strip_prefix("on ") {
            Some(machines) => {
                let machines = machines.split(", ").filter_map(|machine| machine.strip_prefix("10.0.0."));
                machines.for_each(|machine| script += &at(machine, block));
            }
            None => script += &at("0", block),
        }
    }
    script
}

fn path(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

/// The script for commands of the document on one machine.
fn at(machine: &str, commands: &str) -> String {
    let mut commands = commands.to_owned();
    for number in ["1", "2", "3", "4", "5", "6", "7", "8", "9", "$id"] {
        commands = commands.replace(&format!("--hosts 10.0.0.{number}"), "--hosts $HOST");
        for (port, ours) in [("7400", "742"), ("7500", "752")] {
            commands = commands.replace(&format!("10.0.0.{number}:{port}"), &format!("$HOST:{ours}{number}"));
        }
    }
    for folder in ["/var/", "/etc/"] {
        commands = commands.replace(folder, &format!("$R/{machine}{folder}"));
    }
    let mut script = String::new();
    writeln!(script, "MACHINE={machine}\n{commands}").unwrap();
    script
}

async fn plays(section: &str) {
    let mut count = 0;
    for (walks, with_tls) in [(ALL, false), (PLAIN, false), (ALL, true), (SECURED, true)] {
        for walk in walks.iter().filter(|walk| walk.section == section) {
            walk.play(with_tls).await;
            count += 1;
        }
    }
    assert!(count > 0, "{section}");
}

/// A test for each section with commands, so that they run at once, and a list of these sections.
macro_rules! sections {
    ($($test:ident: $section:literal,)*) => {
        $(#[tokio::test]
        async fn $test() {
            plays($section).await;
        })*

        const PLAYED: &[&str] = &[$($section),*];
    };
}

sections! {
    commands: "Commands",
    back_up: "Back up",
    restart: "Restart",
    change_the_members: "Change the members",
    a_node_does_not_run: "A node does not run",
    a_node_hangs: "A node hangs",
    a_machine_does_not_answer: "A machine does not answer",
    a_disk_is_lost_or_a_log_is_damaged: "A disk is lost, or a log is damaged",
    two_of_three_nodes_are_lost: "Two of three nodes are lost",
    all_nodes_are_lost: "All nodes are lost",
    redis_is_lost: "Redis is lost",
    the_wrong_node_was_removed: "The wrong node was removed",
    the_wrong_node_was_added: "The wrong node was added",
    a_forced_removal_stopped_the_cluster: "A forced removal stopped the cluster",
    tls_between_nodes: "TLS between nodes",
    a_year_later: "A year later",
    replace_the_authorities: "Replace the authorities",
}

#[tokio::test]
async fn a_disk_is_full() {
    if may_mount() {
        FULL.play(false).await;
        FULL.play(true).await;
    }
}

#[test]
fn every_section_with_commands_is_played() {
    let mut section = "";
    for line in DOCUMENT.lines() {
        match line.strip_prefix("##") {
            Some(heading) => section = heading.trim_start_matches('#').trim(),
            None if line == "```sh" => {
                assert!(
                    PLAYED.contains(&section) || [FULL.section, FOUND.0, CERTIFY.0].contains(&section),
                    "{section}"
                )
            }
            None => {}
        }
    }
}

/// The paths of all documents below a folder of the repository.
fn documents(folder: &Path) -> Vec<PathBuf> {
    let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let ours = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap();
        !name.starts_with('.') && name != "target" && name != "node_modules"
    };
    let found = paths.filter(ours).flat_map(|path| match path.is_dir() {
        true => documents(&path),
        false => vec![path],
    });
    found.filter(|path| path.extension().is_some_and(|extension| extension == "md")).collect()
}

/// The anchors of a document's headings.
fn anchors(text: &str) -> Vec<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    let anchor = |heading: &str| -> String { heading.chars().filter(kept).collect::<String>() };
    headings
        .map(|line| anchor(line.trim_start_matches('#').trim()).to_lowercase().replace(' ', "-"))
        .collect()
}

#[test]
fn every_link_between_documents_leads_to_a_file_and_a_heading() {
    let mut wrong = Vec::new();
    for path in documents(Path::new(env!("CARGO_MANIFEST_DIR"))) {
        let text = std::fs::read_to_string(&path).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split_once(')')) {
            let (file, anchor) = link.0.split_once('#').unwrap_or((link.0, ""));
            if file.contains("://") {
                continue;
            }
            let to = if file.is_empty() { path.clone() } else { path.with_file_name(file) };
            let is_line = anchor.strip_prefix('L').is_some_and(|line| line.parse::<usize>().is_ok());
            let has_anchor = |text: String| anchors(&text).contains(&anchor.to_owned());
            // Whether it is the right line, `tests/tidy/` tests.
            let leads = match anchor.is_empty() || is_line {
                true => to.exists(),
                false => std::fs::read_to_string(&to).is_ok_and(has_anchor),
            };
            if !leads {
                wrong.push(format!("{}: {}", path.display(), link.0));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
