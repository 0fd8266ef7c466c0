//! Gives the shared library the name that programs look for at run time: it changes with the ABI.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libdrystone.so.1,-z,nodelete");
    println!("cargo:rerun-if-changed=build.rs");
}
