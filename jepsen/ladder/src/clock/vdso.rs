//! The time of day of a program that reads it without the C library, as those in Go do: from a function that the kernel maps
//! into each process, in the vDSO. It is replaced in one process by code that asks the kernel and adds an offset. Others keep
//! theirs: a process whose vDSO is written to gets a copy.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use anyhow::{Context, ensure};

const FUNCTION: &[u8] = b"__vdso_clock_gettime\0";
/// ELF: the type of the section with the symbols, and the size of one.
const DYNSYM: u32 = 11;
const SYMBOL: usize = 24;

/// Sets the time of day of a process off by this many seconds. All its threads must stand still. Returns whether it was
/// done: not while one of them is inside the vDSO.
pub(crate) fn throw(pid: u32, offset_s: i32) -> anyhow::Result<bool> {
    ensure!(cfg!(target_arch = "x86_64"), "can replace the time of day of a Go program on x86-64 only");
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let line = maps.lines().find(|line| line.ends_with("[vdso]")).context("the process has no vDSO")?;
    let (from, to) = line.split_once(' ').and_then(|(it, _)| it.split_once('-')).context("no range")?;
    let (from, to) = (u64::from_str_radix(from, 16)?, u64::from_str_radix(to, 16)?);
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        // The last field is where it goes on.
        let state = fs::read_to_string(task?.path().join("syscall"))?;
        let at = state.trim().rsplit_once(" 0x").context("a thread does not stand still")?.1;
        if (from..to).contains(&u64::from_str_radix(at, 16)?) {
            return Ok(false);
        }
    }
    let memory = File::options().read(true).write(true).open(format!("/proc/{pid}/mem"))?;
    let mut image = vec![0; usize::try_from(to - from)?];
    memory.read_exact_at(&mut image, from)?;
    let function = find(&image).context("the vDSO has no clock_gettime")?;
    memory.write_all_at(&code(offset_s), from + function).context("cannot write to the vDSO")?;
    Ok(true)
}

/// `clock_gettime(edi, rsi)`.
fn code(offset_s: i32) -> [u8; 19] {
    let [a, b, c, d] = offset_s.to_le_bytes();
    [
        0xb8, 0xe4, 0, 0, 0, // mov eax, 228
        0x0f, 0x05, // syscall
        0x85, 0xff, // test edi, edi
        0x75, 0x07, // jnz ret: not CLOCK_REALTIME
        0x48, 0x81, 0x06, a, b, c, d,    // add qword ptr [rsi], offset_s
        0xc3, // ret
    ]
}

/// Where the function is in the image of the vDSO, which is an ELF file.
fn find(image: &[u8]) -> Option<u64> {
    let u16_at = |at: usize| Some(usize::from(u16::from_le_bytes(image.get(at..at + 2)?.try_into().ok()?)));
    let u32_at = |at: usize| Some(u32::from_le_bytes(image.get(at..at + 4)?.try_into().ok()?));
    let u64_at = |at: usize| Some(u64::from_le_bytes(image.get(at..at + 8)?.try_into().ok()?));
    let place = |at: usize| usize::try_from(u64_at(at)?).ok();
    let (sections, size, count) = (place(0x28)?, u16_at(0x3a)?, u16_at(0x3c)?);
    let section = |number: usize| sections + number * size;
    let symbols = (0..count).map(section).find(|&at| u32_at(at + 4) == Some(DYNSYM))?;
    let names = place(section(u32_at(symbols + 0x28)? as usize) + 0x18)?;
    let (first, length) = (place(symbols + 0x18)?, place(symbols + 0x20)?);
    let symbol = (first..first + length).step_by(SYMBOL).find(|&at| {
        let name = u32_at(at).and_then(|name| image.get(names + name as usize..));
        name.is_some_and(|name| name.starts_with(FUNCTION))
    })?;
    u64_at(symbol + 8)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};
    use std::time::{Duration, UNIX_EPOCH};

    use ringfence_harness::until;
    use rustix::process::{Pid, Signal, kill_process};

    use super::*;

    #[tokio::test]
    async fn the_time_of_day_of_one_process_is_set_off() {
        let mut command = Command::new("date");
        let mut date =
            command.args(["-f", "-", "+%s"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        kill_process(Pid::from_child(&date), Signal::STOP).unwrap();
        let thrown = async || throw(date.id(), -3_600).is_ok_and(|done| done).then_some(());
        until(Duration::from_secs(20), "its clock is thrown", thrown).await.unwrap();
        kill_process(Pid::from_child(&date), Signal::CONT).unwrap();
        date.stdin.take().unwrap().write_all(b"now").unwrap();
        let printed = String::from_utf8(date.wait_with_output().unwrap().stdout).unwrap();
        let behind = UNIX_EPOCH.elapsed().unwrap().as_secs() - printed.trim().parse::<u64>().unwrap();
        assert!((3_600..3_660).contains(&behind), "{behind}");
    }
}
