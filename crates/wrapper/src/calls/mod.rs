//! The kernel's calls on files: those that a program makes through libc, one row of hooks each.
//!
//! In: arguments as libc gets them. Out: answers and errors as the kernel gives them. Neighbours: `find` says whose a
//! path or a descriptor is, `edge` how a call ends; what is the host's goes on to libc.

pub(crate) mod aio;
pub(crate) mod data;
pub(crate) mod descriptor;
pub(crate) mod extent;
pub(crate) mod fcntl;
pub(crate) mod identity;
pub(crate) mod in_place;
pub(crate) mod ioctl;
pub(crate) mod mapping;
pub(crate) mod metadata;
pub(crate) mod name;
pub(crate) mod open;
pub(crate) mod openat2;
pub(crate) mod poll;
pub(crate) mod posix_aio;
pub(crate) mod real;
pub(crate) mod rights;
pub(crate) mod splice;
pub(crate) mod stat;
pub(crate) mod sync;
pub(crate) mod terminal;
pub(crate) mod transfer;
pub(crate) mod vector;
pub(crate) mod xattr;
