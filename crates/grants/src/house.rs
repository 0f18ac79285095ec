//! A served device from its administrator's side: the grants, and the sessions that use them.

use crate::error::GrantError;
use crate::keeper::Keeper;
use crate::request::{Reply, Request};
use nvmed_server::{Service, Session, Stop};
use nvmed_units::BLOCK_BYTES;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Instant;

/// A server and its grants.
pub struct House {
    keeper: Arc<Keeper>,
    service: Arc<Service>,
    stop: Stop,
    device: String,
    started: Instant,
}

impl House {
    /// A running server as its administrator sees it. `device` is the device's name, as messages show it.
    #[must_use]
    pub fn new(keeper: Arc<Keeper>, service: Arc<Service>, stop: Stop, device: String) -> Self {
        Self { keeper, service, stop, device, started: Instant::now() }
    }

    /// Carries out a request.
    pub fn answer(&self, request: Request) -> Reply {
        let done = match request {
            Request::Status => Ok(self.status()),
            Request::Grants => Ok(self.grants()),
            Request::Clients => Ok(self.service.list().iter().map(client).collect()),
            Request::GrantTree(grant) => {
                let name = grant.name.clone();
                self.keeper.grant_tree(grant).map(|()| self.end(&name))
            }
            Request::GrantPartition(grant) => self.keeper.grant_partition(grant).map(|()| json!({})),
            Request::Revoke { name } => self.keeper.revoke(&name).map(|()| self.end(&name)),
            Request::Quota { name, limits } => self.keeper.quota(&name, &limits).map(|()| json!({})),
            Request::Drain => Ok(self.drain()),
        };
        done.map_or_else(|error: GrantError| Reply::Failed(error.to_string()), Reply::Done)
    }

    /// Ends the sessions of a tree.
    fn end(&self, name: &str) -> Value {
        json!({ "sessions_ended": self.stop.revoke(|session| *session.view().tree == *name) })
    }

    fn drain(&self) -> Value {
        self.keeper.drain();
        let left = self.stop.sessions();
        self.stop.finish();
        json!({ "sessions": left })
    }

    fn status(&self) -> Value {
        let files = self.keeper.files();
        let (usage, superblock) = (files.statfs(), files.superblock());
        let block = u64::from(usage.block_bytes);
        json!({
            "device": self.device,
            "device_bytes": self.service.mount().device().geometry().bytes(),
            "label": superblock.label,
            "fs_bytes": superblock.blocks * BLOCK_BYTES as u64,
            "bytes": usage.blocks * block,
            "bytes_free": usage.blocks_free * block,
            "inodes": usage.files - usage.files_free,
            "uptime_s": self.started.elapsed().as_secs(),
            "pid": rustix::process::getpid().as_raw_nonzero().get(),
            "sessions": self.service.sessions(),
            "processes": self.service.processes(),
            "draining": self.keeper.is_draining(),
            "trouble": files.trouble().map(|trouble| trouble.to_string()),
        })
    }

    fn grants(&self) -> Value {
        let table = self.keeper.table();
        let trees = table.trees.iter().map(|tree| {
            let mut told = json!(tree);
            if let Some(usage) = self.keeper.usage(tree) {
                told["bytes_used"] = usage.bytes.into();
                told["inodes_used"] = usage.inodes.into();
            }
            let theirs = |session: &&Arc<Session>| *session.view().tree == *tree.name;
            told["sessions"] = self.service.list().iter().filter(theirs).count().into();
            told
        });
        let partitions = table.partitions.iter().map(|part| {
            let mut told = json!(part);
            if let Some([reads, writes, bytes_read, bytes_written]) = self.keeper.traffic(&part.name) {
                told["reads"] = reads.into();
                told["writes"] = writes.into();
                told["bytes_read"] = bytes_read.into();
                told["bytes_written"] = bytes_written.into();
            }
            told
        });
        json!({ "trees": trees.collect::<Vec<_>>(), "partitions": partitions.collect::<Vec<_>>() })
    }
}

fn client(session: &Arc<Session>) -> Value {
    let mut told = session.json();
    let pid = session.peer().pid;
    // A process that has just ended has no name any more.
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    told["program"] = name.trim_end().into();
    told
}
