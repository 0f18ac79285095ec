//! `nvmed admin`: grants of a running server, and who uses them.

use crate::failure::{Failure, Status};
use crate::output::Output;
use crate::serve::arguments::{Admin, AdminCommand, Grant, Limits};
use crate::serve::machine::{admin_socket, socket};
use nvmed_grants::{PartitionGrant, Quota, Reply, Request, Size, TreeGrant, ask};
use serde_json::Value;

/// Where users and groups have names.
const USERS: &str = "/etc/passwd";
const GROUPS: &str = "/etc/group";

/// Asks the server, and shows its answer.
///
/// # Errors
/// Wrong arguments; no server; what it says against it.
pub fn admin(arguments: &Admin) -> Result<(), Failure> {
    let request = match &arguments.command {
        AdminCommand::Status => Request::Status,
        AdminCommand::Grants => Request::Grants,
        AdminCommand::Clients => Request::Clients,
        AdminCommand::Grant(grant) => request(grant)?,
        AdminCommand::Revoke { name } => Request::Revoke { name: name.clone() },
        AdminCommand::Quota(limits) => quota(limits)?,
        AdminCommand::Drain => Request::Drain,
    };
    let place = admin_socket(&socket(arguments.socket.as_deref())?);
    let waits = request == Request::Drain;
    let mut shown = Ok(());
    let said = ask(&place, &request, waits, |said| {
        if let Reply::Done(value) = said {
            shown = show(arguments, value);
        }
    });
    shown?;
    match said {
        Ok(Reply::Done(_)) => Ok(()),
        Ok(Reply::Failed(why)) | Err(why) => Err(Failure::new(Status::Failed, format!("admin: {why}"))),
    }
}

fn show(arguments: &Admin, value: &Value) -> Result<(), Failure> {
    let mut out = Output::new();
    let text = if arguments.json {
        format!("{value}\n")
    } else {
        match &arguments.command {
            AdminCommand::Status => status(value),
            AdminCommand::Grants => grants(value),
            AdminCommand::Clients => clients(value),
            AdminCommand::Drain => format!("waiting for {} sessions\n", value["sessions"]),
            AdminCommand::Grant(_) | AdminCommand::Revoke { .. } => match value["sessions_ended"].as_u64() {
                Some(1..) => format!("{} sessions ended\n", value["sessions_ended"]),
                _ => String::new(),
            },
            AdminCommand::Quota(_) => String::new(),
        }
    };
    out.text(&text)?;
    out.finish()
}

/// A number by name, or by itself.
fn number(what: &str, name: &str, table: &str) -> Result<u32, Failure> {
    if let Ok(number) = name.parse() {
        return Ok(number);
    }
    let text = std::fs::read_to_string(table).unwrap_or_default();
    let found = text.lines().find_map(|line| {
        let mut fields = line.split(':');
        let known = fields.next() == Some(name);
        known.then(|| fields.nth(1)?.parse().ok()).flatten()
    });
    let unknown = || Failure::usage(format!("admin: {table} has no {what} `{name}`; give the number"));
    found.ok_or_else(unknown)
}

fn request(grant: &Grant) -> Result<Request, Failure> {
    let user = |name: &String| number("user", name, USERS);
    let group = |name: &String| number("group", name, GROUPS);
    let users = grant.user.iter().map(user).collect::<Result<Vec<_>, _>>()?;
    let groups = grant.group.iter().map(group).collect::<Result<Vec<_>, _>>()?;
    let name = grant.name.clone();
    let Some((first, bytes)) = grant.partition else {
        let path = grant.tree.clone().unwrap_or_default();
        let (write, urgent, capacity, inodes) = (grant.write, grant.urgent, grant.capacity, grant.inodes);
        let tree = TreeGrant { name, path, users, groups, write, urgent, capacity, inodes };
        return Ok(Request::GrantTree(tree));
    };
    let ([user], [] | [_]) = (&users[..], &groups[..]) else {
        return Err(Failure::usage("admin: a partition has one --user, and one --group at most"));
    };
    Ok(Request::GrantPartition(PartitionGrant {
        name,
        first: Size(first),
        size: Size(bytes),
        user: *user,
        group: groups.first().copied(),
        write: !grant.read_only,
        queues: grant.queues,
        rate: grant.rate,
    }))
}

fn quota(limits: &Limits) -> Result<Request, Failure> {
    let quota = Quota { capacity: limits.capacity, inodes: limits.inodes, rate: limits.rate };
    if quota == Quota::default() {
        return Err(Failure::usage("admin: quota: give --capacity, --inodes or --rate"));
    }
    Ok(Request::Quota { name: limits.name.clone(), limits: quota })
}

fn bytes(value: &Value) -> String {
    value.as_u64().map_or_else(|| "-".to_owned(), |bytes| Size(bytes).to_string())
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(all) => all.iter().map(text).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}

fn status(value: &Value) -> String {
    let draining = if value["draining"] == true { ", draining" } else { "" };
    let trouble = value["trouble"].as_str().map_or_else(String::new, |why| format!("read-only    {why}\n"));
    format!(
        "device       {} ({} bytes)\nfile system  {} bytes, {} free, {} inodes\n{trouble}server       process {}, up \
         {} s\nsessions     {} of {} processes{draining}\n",
        text(&value["device"]),
        value["device_bytes"],
        value["fs_bytes"],
        value["bytes_free"],
        value["inodes"],
        value["pid"],
        value["uptime_s"],
        value["sessions"],
        value["processes"],
    )
}

/// Columns as wide as what is in them.
fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let wide = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell: &String| cell.chars().count()).max()
    };
    let widths: Vec<usize> = (0..columns).map(|column| wide(column).unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

fn head(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn rows(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn grants(value: &Value) -> String {
    let mut trees =
        vec![head(&["TREE", "PATH", "USERS", "GROUPS", "RIGHTS", "USED", "CAPACITY", "INODES", "SESSIONS"])];
    trees.extend(rows(&value["trees"]).map(|tree| {
        let rights = if tree["write"] == true { "write" } else { "read" };
        let urgent = if tree["urgent"] == true { ",urgent" } else { "" };
        vec![
            text(&tree["name"]),
            text(&tree["path"]),
            text(&tree["users"]),
            text(&tree["groups"]),
            format!("{rights}{urgent}"),
            bytes(&tree["bytes_used"]),
            text(&tree["capacity"]),
            format!("{}/{}", text(&tree["inodes_used"]), text(&tree["inodes"])),
            text(&tree["sessions"]),
        ]
    }));
    let mut parts =
        vec![head(&["PARTITION", "FIRST", "SIZE", "USER", "RIGHTS", "QUEUES", "RATE", "READ", "WRITTEN"])];
    parts.extend(rows(&value["partitions"]).map(|part| {
        let rights = if part["write"] == true { "write" } else { "read" };
        vec![
            text(&part["name"]),
            text(&part["first"]),
            text(&part["size"]),
            text(&part["user"]),
            rights.to_owned(),
            text(&part["queues"]),
            text(&part["rate"]),
            bytes(&part["bytes_read"]),
            bytes(&part["bytes_written"]),
        ]
    }));
    let shown = [trees, parts].into_iter().filter(|rows| rows.len() > 1).map(|rows| table(&rows));
    shown.collect::<Vec<_>>().join("\n")
}

fn clients(value: &Value) -> String {
    let mut all = vec![head(&["SESSION", "PROCESS", "USER", "PROGRAM", "TREE", "HANDLES"])];
    all.extend(rows(value).map(|client| {
        ["session", "pid", "uid", "program", "tree", "handles"]
            .iter()
            .map(|key| text(&client[*key]))
            .collect()
    }));
    table(&all)
}
