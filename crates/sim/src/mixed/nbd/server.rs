//! The NBD server of a start: its workers, each a fiber, as the program's data threads are.

use super::super::run::Run;
use super::super::started::Started;
use super::client::Client;
use crate::world::ListenerId;
use drystone_core::Context;
use drystone_exports::nbd::server::{self, Listener};
use drystone_exports::server::{Inbox, Worker};
use fastrand::Rng;
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// Start the server and its clients.
pub(crate) fn spawn_server(run: &Rc<Run>, start: &Rc<Started>, rng: &mut Rng) {
    serve(run, start);
    let plan = run.plan.nbd.as_ref().expect("a plan of what is served");
    start.begin_loads(plan.clients);
    for number in 0..plan.clients {
        let (run, start, seed) = (run.clone(), start.clone(), rng.u64(..));
        run.world.clone().spawn(format!("client {number}"), move || {
            Client::new(run, start, number, seed).run();
        });
    }
}

fn serve(run: &Rc<Run>, start: &Rc<Started>) {
    let plan = run.plan.nbd.as_ref().expect("a plan of what is served");
    let served = start.served();
    let contexts: Vec<Context> = (0..plan.threads).map(|_| start.context(&run.world)).collect();
    *served.inboxes.borrow_mut() =
        contexts.iter().map(|cx| Inbox::new(cx.handle().clone())).collect();
    contexts.iter().for_each(|cx| start.add_handle(cx.handle().clone()));
    let mut sockets = listen(run, start);
    served.begin_workers(plan.threads);
    for (number, cx) in contexts.into_iter().enumerate() {
        let listeners = std::mem::take(&mut sockets);
        let worker = worker(run, start, number, cx, listeners);
        let (run, start) = (run.clone(), start.clone());
        run.world.clone().spawn(format!("data{number}"), move || work(&run, &start, worker));
    }
}

fn listen(run: &Run, start: &Started) -> Vec<Listener> {
    let mut sockets = Vec::new();
    for live in start.stack().listeners() {
        let (id, socket): (ListenerId, OwnedFd) = run.world.listen();
        start.served().listeners.borrow_mut().push(id);
        let table = start.stack().tables()[live.table].clone();
        let peers = server::peers(&start.served().inboxes.borrow());
        let (tls, descriptors_max) = (live.tls.clone(), i32::MAX);
        sockets.push(Listener { socket, tls, table, peers, descriptors_max });
    }
    sockets
}

fn worker(
    run: &Run,
    start: &Started,
    number: usize,
    mut cx: Context,
    listeners: Vec<Listener>,
) -> Worker {
    cx.follow_poll_mode(start.stack().poll_switch().clone());
    let inbox = start.served().inboxes.borrow()[number].clone();
    let locks = cx.locks().sibling();
    listeners.into_iter().for_each(|listener| inbox.put(listener, &locks));
    let mut worker = Worker::new(cx, inbox);
    let registered = run.plan.nbd.as_ref().map_or(0, |plan| plan.registered);
    if registered > 0 {
        worker.register_memory(registered).expect("memory for a worker");
    }
    worker
}

fn work(run: &Run, start: &Started, mut worker: Worker) {
    worker.run();
    drop(worker);
    run.world.look_at_sockets();
    start.served().end_worker();
}

/// Ends the server: nothing of it may be left.
pub(crate) fn end_server(run: &Run, start: &Started) {
    // A connection may have been assigned to a worker that had just ended: it goes with its inbox.
    start.served().inboxes.borrow_mut().clear();
    if run.plan.nbd.is_none() {
        return;
    }
    for live in start.stack().live_exports() {
        let (name, clients) = (&live.spec.name, live.volume.clients.count());
        if clients > 0 {
            run.world.fail(format!("export {name} says that it has {clients} clients in the end"));
        }
    }
    run.world.look_at_sockets();
    let sockets = run.world.sockets_alive();
    if sockets > 0 {
        run.world.fail(format!("{sockets} sockets of the server are open in the end"));
    }
}
