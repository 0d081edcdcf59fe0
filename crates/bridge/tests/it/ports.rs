use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Mutex, PoisonError};

use tacit_bridge::ports::{Held, listen};

/// Held by a test that lets ports go: the next that looks for one in this process would find it first.
static LOOKING: Mutex<()> = Mutex::new(());

fn here(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

#[test]
fn nobody_else_takes_a_held_port() {
    let _looking = LOOKING.lock().unwrap_or_else(PoisonError::into_inner);
    let held = Held::new(3).expect("free ports");
    let other = Held::new(20).expect("free ports");
    assert!(other.numbers().iter().all(|port| !held.numbers().contains(port)));
    for &port in held.numbers() {
        let taken = TcpListener::bind(here(port)).expect_err("held");
        assert_eq!(taken.kind(), ErrorKind::AddrInUse);
        assert!(TcpStream::connect(here(port)).is_err(), "nobody listens where a port is only held");
    }
    let port = held.numbers()[0];
    drop(held);
    TcpListener::bind(here(port)).expect("free again");
}

#[test]
fn whoever_it_is_held_for_listens_there_alone() {
    let _looking = LOOKING.lock().unwrap_or_else(PoisonError::into_inner);
    let held = Held::new(1).expect("a free port");
    let address = here(held.numbers()[0]);
    let listener = listen(address).expect("held for us");
    TcpStream::connect(address).expect("connects");
    assert_eq!(listener.accept().expect("accepts").1.ip(), address.ip());
    drop((listener, held));
    // Without anybody who holds it, the first that listens is the only one.
    let listener = listen(address).expect("free");
    assert_eq!(listen(address).expect_err("taken").kind(), ErrorKind::AddrInUse);
    drop(listener);
}
