//! What a function that answers a call of libc's is made of: its body, and the probe that counts it.

/// Defines a function that answers a call of libc's. Its row in `rows` says by which names it is exported, and what it
/// counts.
///
/// The body runs as one `unsafe` block under the contract of `edge`. `next` names libc's own function, for the body and
/// for others.
macro_rules! hook {
    ($(#[$meta:meta])* fn $name:ident $arguments:tt -> $ret:ty, next $next:ident $body:block) => {
        hook!(@next $next $name $arguments $ret);
        hook!($(#[$meta])* fn $name $arguments -> $ret $body);
    };
    (
        $(#[$meta:meta])*
        fn $name:ident ($($argument:ident: $ty:ty),* $(,)?) -> $ret:ty $body:block
    ) => {
        $(#[$meta])*
        pub(crate) unsafe extern "C" fn $name($($argument: $ty),*) -> $ret {
            // Known when this is compiled: a hook that is no file call has nothing of the probe.
            const SHAPE: Option<&$crate::watch::shape::Shape> = $crate::watch::shape::of::$name;
            let mut probe = core::mem::MaybeUninit::uninit();
            let counted = match SHAPE {
                Some(shape) if $crate::watch::on() => {
                    $crate::watch::begin(&mut probe, shape, &[$(word_of!($argument)),*])
                }
                _ => false,
            };
            // SAFETY: libc's contract for this function; see `edge`.
            #[allow(unused_unsafe, clippy::undocumented_unsafe_blocks, clippy::redundant_closure_call)]
            let answer: $ret = (|| unsafe { $body })();
            if counted {
                $crate::watch::end(&mut probe, word_of!(answer));
            }
            answer
        }
    };
    (@next $next:ident $name:ident ($($argument:ident: $ty:ty),* $(,)?) $ret:ty) => {
        /// libc's own function.
        pub(crate) unsafe extern "C" fn $next($($argument: $ty),*) -> $ret {
            // SAFETY: the arguments are the program's for the function of this name, or its contract is the caller's.
            unsafe { next!($name, fn($($ty),*) -> $ret)($($argument),*) }
        }
    };
}
