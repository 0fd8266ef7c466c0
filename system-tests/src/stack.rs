//! Stack files that the tests share. `DIR` is the server's folder ([`crate::Server`]).
//!
//! Keys that only some tests use stand here, so that the spelling has one place.

/// The key that makes an export read-only.
pub const READ_ONLY: &str = "read_only = true";

/// Keys of an export whose listener demands TLS, with the files of
/// [`crate::client::make_certificates`].
pub const TLS_REQUIRED: &str = "tls = { mode = \"required\", cert = \"DIR/pki/server-cert.pem\", \
                                key = \"DIR/pki/server-key.pem\" }";

/// A RAM device of `size` behind an export of the name `vol`.
pub fn ram(size: &str) -> String {
    format!("[device.d]\ntype = \"ram\"\nsize = \"{size}\"\n{}", export("vol", "d", ""))
}

/// A file device `DIR/disk.img` of `size` behind an export of the name `vol`.
pub fn file(size: &str) -> String {
    format!(
        "[device.d]\ntype = \"file\"\npath = \"DIR/disk.img\"\nsize = \"{size}\"\n{}",
        export("vol", "d", "")
    )
}

/// An array `array` of `kind` over the files `DIR/m0.img` and so on, each of `size`, behind an
/// export of the name `vol`; with further keys.
pub fn array(kind: &str, members: usize, size: &str, keys: &str) -> String {
    let file =
        |n| format!("[device.m{n}]\ntype = \"file\"\npath = \"DIR/m{n}.img\"\nsize = \"{size}\"\n");
    let files: String = (0..members).map(file).collect();
    let names: Vec<String> = (0..members).map(|n| format!("{:?}", format!("m{n}"))).collect();
    format!(
        "{files}[device.array]\ntype = \"{kind}\"\nmembers = [{}]\n{keys}\n{}",
        names.join(", "),
        export("vol", "array", "")
    )
}

/// An export of a device on the socket `DIR/nbd.sock`, with further keys.
pub fn export(name: &str, device: &str, keys: &str) -> String {
    format!("[export.{name:?}]\ndevice = \"{device}\"\nnbd = [\"unix:DIR/nbd.sock\"]\n{keys}\n")
}
