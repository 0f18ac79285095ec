//! A served device, and its users: a thread takes another user's ids, and connects. Needs root, and is skipped, loudly,
//! without.

use crate::support::Client;
use nvmed_grants::{Admin, House, Keeper, Reply, Request, TreeGrant, ask};
use nvmed_server::{Admission, Limits, Server, Service};
use nvmed_wire::{Address, Board, Control, Socket, VERSION};
use rustix::process::DumpableBehavior;
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;

pub const ALICE: u32 = 70_001;
pub const BOB: u32 = 70_002;

/// A server at a path, with its administrator's socket.
pub struct Machine {
    pub dir: PathBuf,
    pub address: Address,
    pub keeper: Arc<Keeper>,
    pub service: Arc<Service>,
    pub server: Option<Server>,
    pub admin: Option<Admin>,
}

impl Machine {
    pub fn new(name: &str) -> Option<Self> {
        Self::within(name, Limits::MACHINE)
    }

    pub fn within(name: &str, limits: Limits) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: {name}: needs root, to be other users");
            return None;
        }
        let dir = std::env::temp_dir().join(format!("nvmed-users-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o755)).unwrap();
        let mount = crate::support::mount();
        let keeper = Arc::new(Keeper::open(&dir.join("grants.toml"), &dir, &mount, mount.device()).unwrap());
        let admission = Admission::Gate(keeper.clone());
        let board = Arc::new(Board::new().unwrap());
        let service = Arc::new(Service::new(mount, admission, board, 1 << 20).limited(limits));
        let path = dir.join("socket");
        let address = Address::Path(path.display().to_string());
        let server = Server::start(Arc::clone(&service), &address).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
        let house = House::new(keeper.clone(), service.clone(), server.stop(), "test".to_owned());
        let admin = Admin::start(&dir.join("admin"), Arc::new(house)).unwrap();
        Some(Self { dir, address, keeper, service, server: Some(server), admin: Some(admin) })
    }

    pub fn grant(&self, name: &str, user: u32, write: bool) {
        let grant = TreeGrant {
            name: name.to_owned(),
            path: format!("/{name}"),
            users: vec![user],
            groups: vec![],
            write,
            urgent: false,
            capacity: None,
            inodes: None,
        };
        self.ask(Request::GrantTree(grant));
    }

    pub fn ask(&self, request: Request) -> serde_json::Value {
        match ask(&self.dir.join("admin"), &request, false, |_| {}).unwrap() {
            Reply::Done(value) => value,
            Reply::Failed(why) => panic!("{why}"),
        }
    }

    /// Asks for a session; what the server answers when it says no.
    pub fn greet(&self, tree: &str) -> Result<Client, i32> {
        Client::try_greet(Socket::connect(&self.address).unwrap(), &greeting(tree))
    }

    pub fn session(&self, tree: &str) -> Client {
        self.greet(tree).unwrap_or_else(|errno| panic!("{tree}: {errno}"))
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        drop(self.admin.take());
        drop(self.server.take());
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

pub fn greeting(tree: &str) -> Control {
    Control::Hello { version: VERSION, secret: Vec::new(), tree: tree.as_bytes().to_vec(), again: None }
}

/// Runs as another user, in a thread of its own.
pub fn as_user<T: Send>(uid: u32, what: impl FnOnce() -> T + Send) -> T {
    let run = || {
        set_thread_groups(&[]).unwrap();
        let gid = rustix::process::Gid::from_raw(uid);
        set_thread_res_gid(gid, gid, gid).unwrap();
        let uid = rustix::process::Uid::from_raw(uid);
        set_thread_res_uid(uid, uid, uid).unwrap();
        // As in a process that began so: the kernel lets it look at its own descriptors.
        rustix::process::set_dumpable_behavior(DumpableBehavior::Dumpable).unwrap();
        what()
    };
    std::thread::scope(|scope| scope.spawn(run).join())
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
