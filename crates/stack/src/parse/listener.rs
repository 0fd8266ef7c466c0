//! Addresses that a server listens on: `unix:PATH[,mode=0660]`, `tcp:HOST:PORT`.

use crate::parse::fields::Check;
use crate::parse::node::Node;
use crate::parse::values::parse_mode;
use crate::spec::Listener;

/// Most bytes of a Unix socket's path: `sun_path` of unix(7), less the closing zero.
pub const MAX_SOCKET_PATH: usize = 107;

/// Mode of a Unix socket that names none: its owner only.
const DEFAULT_MODE: u32 = 0o600;

/// Reads an address; reports a fault at the part that has it.
pub fn parse_listener(check: &mut Check<'_>, node: &Node) -> Option<Listener> {
    let text = node.text()?;
    let result = match text.split_once(':') {
        Some(("unix", rest)) => unix(check, rest, 5),
        Some(("tcp", rest)) => tcp(rest, 4),
        _ => Err(Wrong {
            part: 0..text.find(':').unwrap_or(text.len()),
            message: format!("`{}` is not an address", crate::diagnostic::shorten(text)),
            hint: "write \"unix:PATH\" or \"tcp:HOST:PORT\"".to_owned(),
        }),
    };
    result
        .map_err(|wrong| {
            let span = node.part(check.source, wrong.part);
            check.findings.error(&span, wrong.message, wrong.hint);
        })
        .ok()
}

/// The fault of a part of the text.
struct Wrong {
    part: std::ops::Range<usize>,
    message: String,
    hint: String,
}

fn wrong<T>(start: usize, part: &str, message: impl Into<String>, hint: &str) -> Result<T, Wrong> {
    let part = start..start + part.len();
    Err(Wrong { part, message: message.into(), hint: hint.to_owned() })
}

fn unix(check: &Check<'_>, rest: &str, start: usize) -> Result<Listener, Wrong> {
    let (path, option) = match rest.rsplit_once(',') {
        Some((path, option)) if option.contains('=') => (path, Some(option)),
        _ => (rest, None),
    };
    if let Some(url) = path.strip_prefix("//") {
        let hint = format!("write \"unix:{url}\"");
        return wrong(start, path, format!("`unix:{path}` is no address, but half a URI"), &hint);
    }
    if path.is_empty() || path.contains('\0') {
        return wrong(0, "unix:", "the socket has no path", "write \"unix:PATH\"");
    }
    let mode = match option {
        None => DEFAULT_MODE,
        Some(option) => {
            let mode = option.strip_prefix("mode=").and_then(parse_mode);
            let hint = "write \"unix:PATH,mode=0660\"";
            let at = start + path.len() + 1;
            match mode {
                Some(mode) => mode,
                None => return wrong(at, option, format!("`{option}` is not a mode"), hint),
            }
        }
    };
    let full = check.base.join(path);
    if full.as_os_str().len() > MAX_SOCKET_PATH {
        let message = format!("the socket's path has {} bytes", full.as_os_str().len());
        let hint = format!("a Unix socket's whole path has at most {MAX_SOCKET_PATH} bytes");
        return wrong(start, path, message, &hint);
    }
    Ok(Listener::Unix { path: full, mode })
}

fn tcp(rest: &str, start: usize) -> Result<Listener, Wrong> {
    const HINT: &str =
        "write \"tcp:HOST:PORT\", as in \"tcp:127.0.0.1:10809\" or \"tcp:[::1]:10809\"";
    let Some((host, port)) = rest.rsplit_once(':') else {
        return wrong(start, rest, "the address has no port", HINT);
    };
    let number = crate::parse::values::parse_number(port).and_then(|port| u16::try_from(port).ok());
    let Some(number) = number.filter(|number| *number > 0) else {
        let message = format!("`{port}` is not a port: 1 to 65535");
        return wrong(start + host.len() + 1, port, message, HINT);
    };
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let named = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    let numeric = bare.parse::<std::net::IpAddr>().is_ok();
    let right = match bare == host {
        true => !host.is_empty() && host.chars().all(named),
        false => numeric,
    };
    if !right {
        return wrong(start, host, format!("`{host}` is not a host"), HINT);
    }
    Ok(Listener::Tcp { host: bare.to_owned(), port: number })
}
