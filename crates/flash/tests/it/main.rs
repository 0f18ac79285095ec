//! What the model of a drive answers, in one program.

mod activity;
mod closed_forms;
mod drives;
mod host_memory;
mod kinds;
mod oracle;
mod restore;
mod wear;
