//! What the system does to processes and what programs cannot do without it: signals of groups of processes, and ends
//! that run nothing.

use std::io;
use std::sync::Once;
use std::sync::atomic::{AtomicI32, Ordering};

use libc::c_int;

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
/// Those of an engine may wait for ranks that are lost. Only where the C library is glibc; elsewhere it does nothing.
pub fn exit_without_destructors() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        use std::ffi::c_void;

        unsafe extern "C" {
            fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
        }
        extern "C" fn end(code: c_int, _: *mut c_void) {
            // SAFETY: null flushes every stream of C that is open, and the call after it does not return.
            unsafe {
                libc::fflush(std::ptr::null_mut());
                libc::_exit(code);
            }
        }
        static ONCE: Once = Once::new();
        // SAFETY: the function is as glibc's manual has it. What is registered last runs first, before the destructors.
        ONCE.call_once(|| unsafe {
            on_exit(end, std::ptr::null_mut());
        });
    }
}
