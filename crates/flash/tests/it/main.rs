//! What the model of a drive answers, in one program.

mod closed_forms;
mod drives;
mod kinds;
mod oracle;
mod restore;
mod wear;
