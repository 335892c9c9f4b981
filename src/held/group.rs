use std::{fs, io};

use rustix::process::Pid;

/// Whether anybody in a process group lives. A corpse that nobody has fetched does not: in a container it may stay for ever.
pub(super) fn lives(group: Pid) -> io::Result<bool> {
    for entry in fs::read_dir("/proc")? {
        // Who has gone meanwhile does not live; the other names there are no processes.
        let stat = fs::read_to_string(entry?.path().join("stat"));
        if stat.is_ok_and(|stat| lives_in(group, &stat)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// As in proc_pid_stat(5). The name of a program, in brackets, may have brackets and spaces in it.
fn lives_in(group: Pid, stat: &str) -> bool {
    let mut fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let (state, its_group) = (fields.next(), fields.nth(1));
    // Of a process whose first thread has ended before the others, the state is that of a corpse.
    let threads = fields.nth(14).and_then(|threads| threads.parse().ok()).unwrap_or(1);
    let is_corpse = matches!(state, None | Some("Z" | "X")) && threads <= 1;
    its_group == Some(group.to_string().as_str()) && !is_corpse
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn corpses_and_others_do_not_live_in_a_group() {
        let group = Pid::from_raw(77).unwrap();
        let stat = |state: &str, group: u32, threads: u32| {
            let name = "a) R 1 99 (b";
            format!(
                "78 ({name}) {state} 1 {group} 5 0 -1 4194560 107 0 0 0 0 0 0 0 20 0 {threads} 0 65938 2703360 223"
            )
        };
        assert!(["R", "S", "D", "T"].iter().all(|state| lives_in(group, &stat(state, 77, 1))));
        assert!(!lives_in(group, &stat("S", 99, 1)));
        assert!(!["Z", "X"].iter().any(|state| lives_in(group, &stat(state, 77, 1))));
        assert!(lives_in(group, &stat("Z", 77, 2)), "its other threads run on");
        assert!(!lives_in(group, ""));
    }
}
