//! A server in memory: the state machines driven over byte queues, with a sparse disk behind them.

use std::collections::{BTreeMap, VecDeque};
use std::io::{Error, ErrorKind, Read, Result, Write};

use drystone_exports::nbd::{
    CloseReason, Command, CommandFlags, ErrorCode, Event, ExportDirectory, ExportInfo, Extent,
    Handshake, Item, Lookup, Negotiated, ReplyStyle, Request, StatusQuery, TlsConfig, TlsPolicy,
    TlsSession, Transmission,
};

const BLOCK: u64 = 512;

/// A disk of which only written blocks exist.
#[derive(Default)]
pub struct Disk(BTreeMap<u64, [u8; BLOCK as usize]>);

impl Disk {
    fn read(&self, offset: u64, length: u64) -> Vec<u8> {
        let byte = |at: u64| self.0.get(&(at / BLOCK)).map_or(0, |b| b[(at % BLOCK) as usize]);
        (offset..offset + length).map(byte).collect()
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        for (at, byte) in (offset..).zip(data) {
            let block = self.0.entry(at / BLOCK).or_insert([0; BLOCK as usize]);
            block[(at % BLOCK) as usize] = *byte;
        }
    }

    fn zero(&mut self, offset: u64, length: u64) {
        let end = offset + length;
        for (block, bytes) in self.0.range_mut(offset / BLOCK..end.div_ceil(BLOCK)) {
            let start = block * BLOCK;
            let at = |edge: u64| edge.clamp(start, start + BLOCK) - start;
            bytes[at(offset) as usize..at(end) as usize].fill(0);
        }
        self.0.retain(|_, bytes| bytes.iter().any(|byte| *byte != 0));
    }

    fn extents(&self, offset: u64, length: u64) -> Vec<Extent> {
        let end = offset + length;
        let mut at = offset;
        let mut found = Vec::new();
        for block in self.0.range(offset / BLOCK..end.div_ceil(BLOCK)).map(|(block, _)| *block) {
            let start = (block * BLOCK).max(offset);
            found.push(Extent { length: start - at, data: false, zero: true });
            at = ((block + 1) * BLOCK).min(end);
            found.push(Extent { length: at - start, data: true, zero: false });
        }
        found.push(Extent { length: end - at, data: false, zero: true });
        found
    }
}

/// Exports, of which some are for TLS only.
pub struct Directory {
    pub exports: Vec<ExportInfo>,
    pub tls_only: Vec<String>,
    pub tls: bool,
}

impl ExportDirectory for Directory {
    fn find(&self, name: &str) -> Lookup {
        if self.tls_only.iter().any(|only| only == name) && !self.tls {
            return Lookup::TlsRequired;
        }
        self.exports.as_slice().find(name)
    }

    fn count(&self) -> usize {
        self.exports.len()
    }

    fn list(&self, from: usize, visit: &mut dyn FnMut(&str, &str) -> bool) {
        self.exports.as_slice().list(from, visit);
    }
}

enum Phase {
    Handshake(Handshake),
    Transmission(Box<Negotiated>, Transmission),
}

/// The server's end of a connection, which is also the client's stream.
pub struct Server {
    phase: Phase,
    pub directory: Directory,
    pub disk: Disk,
    pub tls_config: Option<TlsConfig>,
    pub tls: Option<TlsSession>,
    /// Input is fed in pieces of this size.
    pub cut: usize,
    /// Reads of zeroes are answered with holes.
    pub sparse_reads: bool,
    pub closed: Option<CloseReason>,
    pub tls_failed: bool,
    pub requests: Vec<Request>,
    write: Option<(Request, Vec<u8>)>,
    output: VecDeque<u8>,
}

pub fn server(exports: Vec<ExportInfo>) -> Server {
    Server {
        phase: Phase::Handshake(Handshake::new(TlsPolicy::Off)),
        directory: Directory { exports, tls_only: Vec::new(), tls: false },
        disk: Disk::default(),
        tls_config: None,
        tls: None,
        cut: usize::MAX,
        sparse_reads: false,
        closed: None,
        tls_failed: false,
        requests: Vec::new(),
        write: None,
        output: Handshake::greeting().into(),
    }
}

impl Server {
    pub fn with_tls(mut self, policy: TlsPolicy, config: TlsConfig) -> Self {
        self.phase = Phase::Handshake(Handshake::new(policy));
        self.tls_config = Some(config);
        self
    }

    pub fn with_cut(mut self, cut: usize) -> Self {
        self.cut = cut;
        self
    }

    pub fn shut_down(&mut self) {
        if let Phase::Handshake(handshake) = &mut self.phase {
            handshake.shut_down();
        }
    }

    /// The result of the handshake.
    pub fn negotiated(&self) -> &Negotiated {
        match &self.phase {
            Phase::Transmission(negotiated, _) => negotiated,
            Phase::Handshake(_) => panic!("still in the handshake"),
        }
    }

    fn send(&mut self, plain: &[u8]) {
        let Some(tls) = self.tls.as_mut().filter(|tls| !tls.is_handshaking()) else {
            self.output.extend(plain);
            return;
        };
        let mut rest = plain;
        while !rest.is_empty() {
            let taken = tls.write_plaintext(rest);
            rest = &rest[taken..];
            drain_tls(tls, &mut self.output);
        }
    }

    fn close(&mut self, reason: CloseReason) {
        self.closed = Some(reason);
        if let Some(tls) = &mut self.tls {
            tls.close_notify();
            drain_tls(tls, &mut self.output);
        }
    }

    fn receive(&mut self, piece: &[u8]) {
        if self.tls.is_none() {
            return self.receive_plain(piece);
        }
        let mut rest = piece;
        while !rest.is_empty() && self.closed.is_none() && !self.tls_failed {
            let tls = self.tls.as_mut().expect("checked above");
            let was_handshaking = tls.is_handshaking();
            match tls.receive(rest) {
                Ok(taken) => rest = &rest[taken..],
                Err(_) => self.tls_failed = true,
            }
            drain_tls(tls, &mut self.output);
            if was_handshaking && !tls.is_handshaking() {
                let Phase::Handshake(handshake) = &mut self.phase else { unreachable!() };
                handshake.tls_established();
                self.directory.tls = true;
            }
            let mut plain = [0; 777];
            while let count @ 1.. = self.tls.as_mut().expect("TLS").read_plaintext(&mut plain) {
                self.receive_plain(&plain[..count]);
            }
        }
    }

    fn receive_plain(&mut self, piece: &[u8]) {
        let mut rest = piece;
        while self.closed.is_none() {
            let more = match &self.phase {
                Phase::Handshake(_) => self.negotiate(&mut rest),
                Phase::Transmission(..) => self.serve(&mut rest),
            };
            if !more {
                break;
            }
        }
    }

    fn negotiate(&mut self, rest: &mut &[u8]) -> bool {
        let Phase::Handshake(handshake) = &mut self.phase else { unreachable!() };
        let mut out = Vec::new();
        let step = handshake.advance(rest, &self.directory, &mut out);
        *rest = &rest[step.consumed..];
        self.send(&out);
        match step.event {
            Event::NeedMore => return false,
            Event::Replied => {}
            Event::StartTls => {
                let config = self.tls_config.as_ref().expect("a TLS configuration");
                self.tls = Some(TlsSession::new(config).expect("a session"));
                return false;
            }
            Event::Transmission(negotiated) => {
                let parser = Transmission::new(&negotiated);
                self.phase = Phase::Transmission(negotiated, parser);
            }
            Event::Close(reason) => self.close(reason),
        }
        true
    }

    fn serve(&mut self, rest: &mut &[u8]) -> bool {
        if let Some((request, mut data)) = self.write.take() {
            let missing = (request.length as usize - data.len()).min(rest.len());
            data.extend(&rest[..missing]);
            *rest = &rest[missing..];
            if data.len() < request.length as usize {
                self.write = Some((request, data));
                return false;
            }
            self.carry_out(&request, &data);
        }
        let Phase::Transmission(negotiated, parser) = &mut self.phase else { unreachable!() };
        let parsed = parser.next(rest);
        *rest = &rest[parsed.consumed..];
        match parsed.item {
            Item::NeedMore => return false,
            Item::Request(request) => {
                self.requests.push(request);
                if request.command == Command::Write {
                    self.write = Some((request, Vec::new()));
                } else {
                    self.carry_out(&request, &[]);
                }
            }
            Item::Refused(refusal) => {
                let mut out = [0; 256];
                let style = negotiated.style;
                let length = style.error(&mut out, refusal.tag, refusal.error, refusal.message);
                self.send(&out[..length]);
            }
            Item::Close(reason) => self.close(reason),
        }
        true
    }

    fn carry_out(&mut self, request: &Request, data: &[u8]) {
        let style = self.negotiated().style;
        let mut out = vec![0; 4096];
        let length = match request.command {
            Command::Read => return self.read(request),
            Command::BlockStatus => return self.status(request),
            Command::WriteZeroes if request.flags.bits() & 0x10 != 0 => {
                style.error(&mut out, request.tag(), ErrorCode::Enotsup, "not fast")
            }
            Command::Write => {
                self.disk.write(request.offset, data);
                style.success(&mut out, request.tag())
            }
            Command::Trim | Command::WriteZeroes => {
                self.disk.zero(request.offset, request.length);
                style.success(&mut out, request.tag())
            }
            _ => style.success(&mut out, request.tag()),
        };
        self.send(&out[..length]);
    }

    fn read(&mut self, request: &Request) {
        let style = self.negotiated().style;
        let mut header = [0; 64];
        let is_sparse = self.sparse_reads
            && style != ReplyStyle::Simple
            && !request.flags.contains(CommandFlags::DF);
        if !is_sparse {
            let length = style.read_header(&mut header, request.tag(), request.length as u32);
            assert_eq!(length, style.read_header_bytes());
            self.send(&header[..length]);
            let data = self.disk.read(request.offset, request.length);
            return self.send(&data);
        }
        let mut runs: Vec<(u64, bool)> = Vec::new();
        for Extent { length, zero, .. } in self.disk.extents(request.offset, request.length) {
            match runs.last_mut() {
                Some(last) if last.1 == zero || length == 0 => last.0 += length,
                _ if length == 0 => {}
                _ => runs.push((length, zero)),
            }
        }
        let (mut at, end) = (request.offset, request.offset + request.length);
        for (length, zero) in runs {
            let (offset, done) = (at, at + length == end);
            at += length;
            let chunk = if zero { ReplyStyle::hole_chunk } else { ReplyStyle::data_chunk };
            let header_bytes =
                chunk(style, &mut header, request.tag(), offset, length as u32, done);
            self.send(&header[..header_bytes]);
            if !zero {
                let data = self.disk.read(offset, length);
                self.send(&data);
            }
        }
    }

    fn status(&mut self, request: &Request) {
        let negotiated = self.negotiated();
        let style = negotiated.style;
        let query = StatusQuery::new(request, negotiated.export.block_sizes.min);
        let ids: Vec<u32> =
            request.contexts.iter().map(|index| negotiated.contexts[index].id).collect();
        let extents = self.disk.extents(request.offset, request.length);
        for (index, id) in ids.iter().enumerate() {
            let mut out = vec![0; style.status_bytes(64)];
            let done = index + 1 == ids.len();
            let length = style.status_chunk(&mut out, request.tag(), *id, &extents, query, done);
            self.send(&out[..length]);
        }
    }
}

fn drain_tls(tls: &mut TlsSession, output: &mut VecDeque<u8>) {
    let mut buffer = [0; 4096];
    while let count @ 1.. = tls.take_ciphertext(&mut buffer) {
        output.extend(&buffer[..count]);
    }
}

impl Write for Server {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        for piece in bytes.chunks(self.cut) {
            self.receive(piece);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

impl Read for Server {
    fn read(&mut self, out: &mut [u8]) -> Result<usize> {
        match self.output.read(out)? {
            0 if self.closed.is_some() || self.tls_failed => Ok(0),
            0 => Err(Error::new(ErrorKind::WouldBlock, "the server waits for more")),
            count => Ok(count),
        }
    }
}
