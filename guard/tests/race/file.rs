use std::fs;
use std::path::PathBuf;

use ringfence_guard::{Admission, Claim, GuardedFile};

use crate::race::race;
use crate::resource::Resource;
use crate::scratch;

impl Resource for GuardedFile {
    fn touch(&self, claim: Claim) -> Admission {
        GuardedFile::touch(self, claim).unwrap()
    }

    fn read(&self) -> u64 {
        String::from_utf8(GuardedFile::read(self).unwrap().data).unwrap().parse().unwrap()
    }

    fn write(&self, claim: Claim, number: u64) -> Admission {
        GuardedFile::write(self, claim, number.to_string().as_bytes()).unwrap()
    }
}

/// A file that is replaced as a whole, as the guarded one, without a token.
struct Plain(PathBuf);

impl Resource for Plain {
    fn touch(&self, _: Claim) -> Admission {
        Admission::Accepted(())
    }

    fn read(&self) -> u64 {
        fs::read_to_string(&self.0).unwrap().parse().unwrap()
    }

    fn write(&self, claim: Claim, number: u64) -> Admission {
        let new = self.0.with_extension(claim.token().to_string());
        fs::write(&new, number.to_string()).unwrap();
        fs::rename(new, &self.0).unwrap();
        Admission::Accepted(())
    }
}

#[test]
fn a_guarded_file_rejects_late_holders_and_nobody_else() {
    let dir = scratch::folder();
    let file = GuardedFile::create(dir.path().join("number"), b"0").unwrap();
    race(&file).assert_right();
}

#[test]
#[ignore = "slow"]
fn a_file_without_a_guard_loses_updates() {
    let dir = scratch::folder();
    let path = dir.path().join("number");
    fs::write(&path, "0").unwrap();
    race(&Plain(path)).assert_wrong();
}
