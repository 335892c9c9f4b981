//! What the release script packages, from the debug build of the tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{PROGRAM, deploy};

const ADDRESS: &str = "https://example.org/ringfence";

/// Runs a command that must succeed, and returns what it printed.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn packages(out: &Path, glibc: &str) -> Command {
    let mut command = Command::new(deploy("release"));
    // A fresh clone has a commit, and an archive of the sources has none.
    command.args(["--binary", PROGRAM, "--out"]).arg(out).env("SOURCE_DATE_EPOCH", "1700000000");
    // Much faster.
    command.args(["--glibc", glibc, "--address", ADDRESS]).env("DPKG_DEB_COMPRESSOR_LEVEL", "0");
    command
}

/// For this system's glibc: the program of the tests was linked with it.
fn release(out: &Path) -> String {
    let glibc = run(Command::new("getconf").arg("GNU_LIBC_VERSION"));
    run(&mut packages(out, glibc.trim().strip_prefix("glibc ").unwrap()))
}

/// Whether this machine can package the program.
fn may_package() -> bool {
    let has = |tool: &&str| Command::new(tool).arg("--version").output().is_ok();
    let may = cfg!(target_arch = "x86_64") && ["dpkg-deb", "mvn", "jar"].iter().all(has);
    if !may {
        eprintln!("skipped: needs dpkg-deb, Maven, a JDK, and a program for x86-64");
    }
    may
}

#[test]
fn a_program_that_needs_a_newer_glibc_than_the_packages_promise_is_refused() {
    if !may_package() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let output = packages(dir.path(), "2.2").output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains("and the packages promise 2.2\n"), "{said}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
#[ignore = "slow"]
fn a_release_is_complete_and_the_same_each_time() {
    if !may_package() {
        return;
    }
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (first, second) = (dir.path().join("first"), dir.path().join("second"));
    assert_eq!(release(&first), release(&second));
    run(Command::new("sha256sum").args(["--check", "--strict", "SHA256SUMS"]).current_dir(&first));

    let name = concat!("ringfence-", env!("CARGO_PKG_VERSION"), "-x86_64-unknown-linux-gnu");
    run(Command::new("tar").arg("-xzf").arg(first.join(format!("{name}.tar.gz"))).arg("-C").arg(dir.path()));
    let unpacked = dir.path().join(name);
    let version = run(Command::new(unpacked.join("bin/ringfence")).arg("--version"));
    assert_eq!(version.trim(), concat!("ringfence ", env!("CARGO_PKG_VERSION")));
    for file in [
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "docs/redis-locks.md",
        "guard/sql/postgres.sql",
        "guard/lua/guard.lua",
        "deploy/alerts.yml",
        "deploy/grafana.json",
        "THIRD-PARTY-LICENSES",
        "man/ringfence-cluster-add.1",
        "completions/_ringfence",
        "systemd/ringfence.service",
    ] {
        assert!(unpacked.join(file).exists(), "{file}");
    }

    let package = first.join(concat!("ringfence_", env!("CARGO_PKG_VERSION"), "-1_amd64.deb"));
    let files = run(Command::new("dpkg-deb").arg("-c").arg(&package));
    for file in [
        "usr/bin/ringfence",
        "etc/default/ringfence",
        "usr/lib/systemd/system/ringfence.service",
        "usr/share/man/man1/ringfence-lock.1.gz",
        "usr/share/doc/ringfence/THIRD-PARTY-LICENSES.gz",
        "usr/share/doc/ringfence/guard/sql/postgres.sql",
        "usr/share/doc/ringfence/deploy/alerts.yml",
    ] {
        assert!(
            files.lines().any(|line| line.ends_with(&format!(" ./{file}"))),
            "{file} is not in:\n{files}"
        );
    }
    let depends = run(Command::new("dpkg-deb").arg("-f").arg(&package).arg("Depends"));
    assert!(depends.starts_with("libc6 (>= 2."), "{depends}");
    let homepage = run(Command::new("dpkg-deb").arg("-f").arg(&package).arg("Homepage"));
    assert_eq!(homepage.trim(), ADDRESS);

    let program = fs::read(unpacked.join("bin/ringfence")).unwrap();
    let licences = fs::read_to_string(unpacked.join("THIRD-PARTY-LICENSES")).unwrap();
    names_what_is_linked(&licences);
    pip_installs(&program, &licences, &first, dir.path());
    npm_installs(&program, &licences, &first, dir.path());
    go_runs(&first, dir.path());
    java_compiles(&first, dir.path());
}

/// Each crate with its licence, and the texts of these.
fn names_what_is_linked(licences: &str) {
    for krate in ["tokio 1", "openraft 0", "hyper 1", "rustls 0", "sled 0"] {
        assert!(licences.lines().any(|line| line.starts_with(krate) && line.contains(": ")), "{krate}");
    }
    for text in [
        "Copyright (c) Tokio Contributors",
        "TERMS AND CONDITIONS FOR USE, REPRODUCTION",
        "UNICODE LICENSE V3",
    ] {
        assert!(licences.contains(text), "{text}");
    }
    assert!(!licences.contains("\nproptest "), "it is no part of the program");
}

/// Without a network. No script wraps the program.
fn pip_installs(program: &[u8], licences: &str, packages: &Path, dir: &Path) {
    let has_pip = Command::new("python3").args(["-c", "import ensurepip"]).output();
    if !has_pip.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: pip is not installed");
        return;
    }
    let wheel = file(packages, ".whl");
    run(Command::new("python3").args(["-m", "venv"]).arg(dir.join("venv")));
    let pip = dir.join("venv/bin/pip");
    run(Command::new(&pip).args(["install", "--no-index", "--disable-pip-version-check"]).arg(wheel));
    is_installed(&dir.join("venv/bin/ringfence"), program);
    run(Command::new(&pip).arg("check"));
    let place = "import importlib.metadata as it; print(it.distribution('ringfence-cli')._path)";
    let place = run(Command::new(dir.join("venv/bin/python")).args(["-c", place]));
    let own = Path::new(place.trim()).join("licenses/THIRD-PARTY-LICENSES");
    assert_eq!(fs::read_to_string(own).unwrap(), licences);
    assert!(dir.join("venv/share/doc/ringfence/guard/sql/postgres.sql").exists());
    let shown = run(Command::new(&pip).args(["show", "--verbose", "ringfence-cli"]));
    assert!(shown.contains(&format!("Source, {ADDRESS}\n")), "{shown}");
    run(Command::new(&pip).args(["uninstall", "--yes", "ringfence-cli"]));
    assert!(!dir.join("venv/bin/ringfence").exists());
}

/// As with pip.
fn npm_installs(program: &[u8], licences: &str, packages: &Path, dir: &Path) {
    if Command::new("npm").arg("--version").output().is_err() {
        eprintln!("skipped: npm is not installed");
        return;
    }
    let mut npm = Command::new("npm");
    npm.args(["install", "--offline", "--no-audit", "--no-fund", "--prefix"]).arg(dir.join("app"));
    run(npm.arg(file(packages, ".tgz")).env("npm_config_cache", dir.join("cache")));
    is_installed(&dir.join("app/node_modules/.bin/ringfence"), program);
    let own = dir.join("app/node_modules/ringfence-cli");
    assert_eq!(fs::read_to_string(own.join("THIRD-PARTY-LICENSES")).unwrap(), licences);
    assert!(own.join("doc/guard/sql/postgres.sql").exists());
    let package = fs::read_to_string(own.join("package.json")).unwrap();
    let package: serde_json::Value = serde_json::from_str(&package).unwrap();
    assert_eq!(package["homepage"], ADDRESS);
}

/// In an empty folder, without a network: the client needs no other module. A plug does, but is all there itself.
fn go_runs(packages: &Path, dir: &Path) {
    const MAIN: &str = r#"
package main

import (
	"context"
	"fmt"

	"ringfence.dev/sdk/go/ringfencetest"
)

func main() {
	cluster := ringfencetest.New()
	defer cluster.Close()
	lease, err := cluster.Client().Acquire(context.Background(), "a")
	fmt.Println(lease.Keys(), err)
}
"#;
    if Command::new("go").arg("version").output().is_err() {
        eprintln!("skipped: Go is not installed");
        return;
    }
    let version = env!("CARGO_PKG_VERSION");
    let name = format!("ringfence-go-{version}");
    run(Command::new("tar").arg("-xzf").arg(packages.join(format!("{name}.tar.gz"))).arg("-C").arg(dir));
    let (proxy, app) = (format!("file://{}", dir.join(name).display()), dir.join("go"));
    fs::create_dir(&app).unwrap();
    fs::write(app.join("main.go"), MAIN).unwrap();
    let go = |arguments: &str| {
        let mut go = Command::new("go");
        go.args(arguments.split(' ')).current_dir(&app).env("GOPROXY", &proxy).env("GOSUMDB", "off");
        run(go.env("GOFLAGS", "-modcacherw").env("GOMODCACHE", dir.join("modules")))
    };
    go("mod init app");
    go(&format!("get ringfence.dev/sdk/go@v{version}"));
    assert_eq!(go("run ."), "[a] <nil>\n");
    for plug in ["cron", "pgxguard"] {
        go(&format!("mod download ringfence.dev/sdk/go/{plug}@v{version}"));
    }
    for module in ["go", "go/cron", "go/pgxguard"] {
        let place = dir.join(format!("modules/ringfence.dev/sdk/{module}@v{version}"));
        let licence = fs::read_to_string(place.join("LICENSE")).unwrap();
        assert!(licence.contains("Apache License"), "{module}");
        assert!(!place.join("internal").exists(), "{module}");
    }
}

/// In an empty folder, with the jar alone.
fn java_compiles(packages: &Path, dir: &Path) {
    const MAIN: &str = r#"
import dev.ringfence.*;

class Main {
  public static void main(String[] arguments) throws Exception {
    try (FakeCluster cluster = new FakeCluster(); Ringfence client = cluster.client();
        Lease lease = client.lock("a").acquire()) {
      System.out.println(lease.keys() + " " + (Main.class.getResource("/dev/ringfence/jdbc/postgres.sql") != null));
    }
  }
}
"#;
    let version = env!("CARGO_PKG_VERSION");
    let archive = packages.join(format!("ringfence-java-{version}.tar.gz"));
    run(Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(dir));
    let group = dir.join(format!("ringfence-java-{version}/dev/ringfence"));
    for name in ["ringfence", "ringfence-shedlock", "ringfence-spring-integration"] {
        let start = group.join(name).join(version).join(format!("{name}-{version}"));
        let packed = |end: &str| PathBuf::from(format!("{}{end}", start.display()));
        for (end, example) in [("", "META-INF/LICENSE"), ("-sources", ".java"), ("-javadoc", "index.html")] {
            let list =
                run(Command::new("jar").arg("--list").arg("--file").arg(packed(&format!("{end}.jar"))));
            assert!(list.contains("META-INF/LICENSE") && list.contains(example), "{name}{end}: {list}");
        }
        let pom = fs::read_to_string(packed(".pom")).unwrap();
        assert!(pom.contains(&format!("<url>{ADDRESS}</url>")), "{pom}");
    }
    let app = dir.join("java");
    fs::create_dir(&app).unwrap();
    fs::write(app.join("Main.java"), MAIN).unwrap();
    let jar = group.join(format!("ringfence/{version}/ringfence-{version}.jar"));
    run(Command::new("javac").arg("-cp").arg(&jar).arg("Main.java").current_dir(&app));
    let class_path = format!("{}:.", jar.display());
    assert_eq!(run(Command::new("java").args(["-cp", &class_path, "Main"]).current_dir(&app)), "[a] true\n");
}

/// The path of the one file of a folder with this end.
fn file(folder: &Path, end: &str) -> PathBuf {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut found = paths.filter(|path| path.to_str().unwrap().ends_with(end));
    let path = found.next().unwrap_or_else(|| panic!("no {end} in {}", folder.display()));
    assert_eq!(found.next(), None);
    path
}

fn is_installed(command: &Path, program: &[u8]) {
    assert!(fs::read(command).unwrap() == program, "{} is another program", command.display());
    let version = run(Command::new(command).arg("--version"));
    assert_eq!(version.trim(), concat!("ringfence ", env!("CARGO_PKG_VERSION")));
}
