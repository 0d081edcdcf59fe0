//! What the system does to processes beyond the standard library: signals to groups of processes, exits without
//! destructors, and memory that is given back.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, Once, PoisonError};

use libc::c_int;

/// Gives the system back memory that is free, and that the C library keeps for later: after something large of many small
/// pieces, such as a tokenizer, is gone. Nothing happens where the C library is another one than glibc.
pub fn give_back_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes a number, and touches nothing that is in use.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Has the C library give memory of 4 MiB and more back to the system as soon as it is free. By itself it comes to keep pieces of up
/// to 32 MiB, and what is in use lies between them. It holds for the whole process. Nothing happens where the C library is another
/// one than glibc.
pub fn give_back_large_memory_at_once() {
    #[cfg(target_env = "gnu")]
    {
        const LARGE: c_int = 4 << 20;
        // SAFETY: it takes two numbers, and touches nothing that is in use.
        unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE) };
    }
}

/// A signal that ends a process that does not mind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// The terminal's Ctrl-C.
    Interrupt,
    /// The terminal is gone.
    Hangup,
    /// Somebody asks for it.
    Terminate,
    /// No process can mind this one.
    Kill,
}

impl Signal {
    /// The system's number.
    #[must_use]
    pub fn number(self) -> i32 {
        match self {
            Self::Interrupt => libc::SIGINT,
            Self::Hangup => libc::SIGHUP,
            Self::Terminate => libc::SIGTERM,
            Self::Kill => libc::SIGKILL,
        }
    }
}

/// Sends a signal to every process of the group that the process `leader` leads.
///
/// # Errors
///
/// No process of the group is left, or none may be sent it.
pub fn signal_group(leader: u32, signal: Signal) -> io::Result<()> {
    send(-number(leader)?, signal)
}

/// Sends a signal to a process.
///
/// # Errors
///
/// There is no such process, or it may not be sent it.
pub fn signal(process: u32, signal: Signal) -> io::Result<()> {
    send(number(process)?, signal)
}

/// Whether any process is left of the group that the process `leader` leads or led.
#[must_use]
pub fn group_is_left(leader: u32) -> bool {
    let Ok(leader) = number(leader) else { return false };
    // SAFETY: the call has no operands but numbers; signal 0 is not sent, and only asks.
    let sent = unsafe { libc::kill(-leader, 0) };
    sent == 0 || io::Error::last_os_error().raw_os_error() == Some(libc::EPERM)
}

/// Gives the program that this command starts the default actions of `SIGINT`, `SIGQUIT`, `SIGTERM`, `SIGTTIN`, `SIGCHLD` and
/// `SIGXFSZ`, whatever this process was told to ignore.
///
/// A program inherits which signals are ignored: those of a script's background jobs ignore interrupt and quit. Hangup
/// stays as it is, so that `nohup` holds for what is started below it as well.
pub fn with_default_signals(command: &mut Command) {
    let reset = || {
        for signal in [libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGTTIN, libc::SIGCHLD, libc::SIGXFSZ] {
            // SAFETY: the default action needs nothing of this process.
            if unsafe { libc::signal(signal, libc::SIG_DFL) } == libc::SIG_ERR {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    };
    // SAFETY: between fork and exec the function makes system calls only and allocates nothing.
    unsafe { command.pre_exec(reset) };
}

/// Takes the default action of `SIGCHLD`: a process that inherited it as ignored cannot wait for what it starts, as the system drops
/// the exit codes.
pub fn see_ends_of_children() {
    // SAFETY: the default action needs nothing of this process.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

/// From now on reading the terminal from the background is an error, `EIO`, and does not stop this process.
pub fn read_without_stops() {
    // SAFETY: nothing runs where a signal is ignored.
    unsafe { libc::signal(libc::SIGTTIN, libc::SIG_IGN) };
}

/// From now on a write beyond the limit on the size of files is an error, `EFBIG`, and does not end this process.
pub fn write_without_ends() {
    // SAFETY: nothing runs where a signal is ignored.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Has the system send the program that this command starts a signal when the thread that starts it has ended, however it
/// ended. Only on Linux; elsewhere it does nothing.
pub fn end_with_parent(command: &mut Command, signal: Signal) {
    #[cfg(target_os = "linux")]
    {
        let parent = std::process::id();
        let ask = move || {
            // SAFETY: the call has no operands but numbers.
            if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal.number() as libc::c_ulong) } != 0 {
                return Err(io::Error::last_os_error());
            }
            // It may have ended before the system was asked. An error of a number allocates nothing.
            if std::os::unix::process::parent_id() == parent {
                Ok(())
            } else {
                Err(io::Error::from_raw_os_error(libc::ESRCH))
            }
        };
        // SAFETY: between fork and exec the function makes system calls only and allocates nothing.
        unsafe { command.pre_exec(ask) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (command, signal);
}

/// Numbers below 2 do not stand for processes of ours, nor do their opposites for groups.
fn number(process: u32) -> io::Result<c_int> {
    let number = c_int::try_from(process).ok().filter(|&number| number > 1);
    number.ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

fn send(to: c_int, signal: Signal) -> io::Result<()> {
    // SAFETY: the call has no operands but numbers.
    if unsafe { libc::kill(to, signal.number()) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

static CAUGHT: AtomicI32 = AtomicI32::new(0);

/// From now on interrupt, hangup and terminate do not end this process, and [`caught`] tells of them.
///
/// One that whoever started the process has it ignore stays ignored.
pub fn catch_signals() {
    extern "C" fn remember(signal: c_int) {
        CAUGHT.store(signal, Ordering::SeqCst);
    }
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for signal in [Signal::Interrupt, Signal::Hangup, Signal::Terminate] {
            let handler = remember as extern "C" fn(c_int) as libc::sighandler_t;
            // SAFETY: the handler stores a number in an atomic, which is allowed wherever a signal comes.
            unsafe {
                if libc::signal(signal.number(), handler) == libc::SIG_IGN {
                    libc::signal(signal.number(), libc::SIG_IGN);
                }
            }
        }
    });
}

/// The last signal that came since [`catch_signals`] or the last call.
#[must_use]
pub fn caught() -> Option<Signal> {
    let number = CAUGHT.swap(0, Ordering::SeqCst);
    [Signal::Interrupt, Signal::Hangup, Signal::Terminate].into_iter().find(|signal| signal.number() == number)
}

/// Ends this process without running anything more of it: where a thread is inside MLX, what MLX does at an end may wait
/// for it, and for ever.
pub fn exit_at_once(code: i32) -> ! {
    // SAFETY: the call does not return, and touches nothing of the process.
    unsafe { libc::_exit(code) }
}

/// From now on the end of this process, with whatever code, leaves out the destructors of MLX and its engines.
///
/// Those of an engine may wait for ranks that are lost. Only where the C library is glibc, which tells the code; elsewhere it
/// does nothing.
pub fn exit_without_destructors() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    at_exit(|code| {
        // SAFETY: null flushes every stream of C that is open.
        unsafe { libc::fflush(std::ptr::null_mut()) };
        exit_at_once(code);
    });
}

/// Calls `f` with the exit code when this process ends by itself, before the destructors of what was there before; once,
/// however often it is given. Where the C library is not glibc, the code is said to be 0.
pub fn at_exit(f: fn(i32)) {
    static GIVEN: Mutex<Vec<fn(i32)>> = Mutex::new(Vec::new());
    static LEFT: Mutex<Vec<fn(i32)>> = Mutex::new(Vec::new());
    fn call(code: i32) {
        // What was given last is called first, as the system does, also where that was while another one was called.
        let last = LEFT.lock().unwrap_or_else(PoisonError::into_inner).pop();
        if let Some(f) = last {
            // Nothing must unwind into C.
            drop(std::panic::catch_unwind(|| f(code)));
        }
    }
    let mut registered = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    if registered.iter().any(|other| std::ptr::fn_addr_eq(*other, f)) {
        return;
    }
    registered.push(f);
    LEFT.lock().unwrap_or_else(PoisonError::into_inner).push(f);
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        use std::ffi::c_void;

        unsafe extern "C" {
            fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
        }
        extern "C" fn end(code: c_int, _: *mut c_void) {
            call(code);
        }
        // SAFETY: the function is as glibc's manual has it, and stays for the life of the process.
        unsafe { on_exit(end, std::ptr::null_mut()) };
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    {
        extern "C" fn end() {
            call(0);
        }
        // SAFETY: the function stays for the life of the process.
        unsafe { libc::atexit(end) };
    }
}
