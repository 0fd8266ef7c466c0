//! The answers to options.

use super::data::{self as option_data, ContextRequest, InfoRequest, Malformed};
use super::{
    Event, Handshake, LIST_BATCH_BYTES, Negotiated, Reason, SelectedContext, State, TlsPolicy,
};
use crate::nbd::export::{ExportDirectory, ExportInfo, Lookup, MetaContext};
use crate::nbd::proto::{ClientFlags, InfoCode, OptionCode, ReplyCode, TransmissionFlags};
use crate::nbd::reply::ReplyStyle;

impl Handshake {
    /// True if TLS is required and not in use yet.
    pub(super) fn lacks_tls(&self) -> bool {
        self.policy == TlsPolicy::Required && !self.tls
    }

    /// Serves one option whose data has arrived.
    pub(super) fn option<D: ExportDirectory + ?Sized>(
        &mut self,
        option: u32,
        data: &[u8],
        directory: &D,
        out: &mut Vec<u8>,
    ) -> Event {
        let code = OptionCode::from_wire(option);
        if code == Some(OptionCode::ExportName) {
            return self.export_name(data, directory, out);
        }
        if self.lacks_tls() && code != Some(OptionCode::StartTls) {
            return Self::refuse(out, option, ReplyCode::ErrTlsReqd, "this server requires TLS");
        }
        if self.shutting_down {
            return Self::refuse(
                out,
                option,
                ReplyCode::ErrShutdown,
                "the server is shutting down",
            );
        }
        match code {
            Some(OptionCode::List) => self.list(option, data, directory, out),
            Some(OptionCode::StartTls) => self.start_tls(option, data, out),
            Some(OptionCode::Info | OptionCode::Go) => self.info(option, data, directory, out),
            Some(OptionCode::StructuredReply) => self.structured_reply(option, data, out),
            Some(OptionCode::ExtendedHeaders) => self.extended_headers(option, data, out),
            Some(OptionCode::ListMetaContext) => self.list_contexts(option, data, directory, out),
            Some(OptionCode::SetMetaContext) => self.set_contexts(option, data, directory, out),
            Some(OptionCode::ExportName | OptionCode::Abort) => unreachable!("served before"),
            None => Self::refuse(out, option, ReplyCode::ErrUnsup, "the option is not known here"),
        }
    }

    fn export_name<D: ExportDirectory + ?Sized>(
        &mut self,
        data: &[u8],
        directory: &D,
        out: &mut Vec<u8>,
    ) -> Event {
        match self.find_for_export_name(data, directory) {
            Ok(export) => {
                let flags = self.flags_for(&export);
                let zeroes = !self.client_flags.contains(ClientFlags::NO_ZEROES);
                option_data::export_name_answer(out, export.size_bytes, flags, zeroes);
                self.enter_transmission(export, flags)
            }
            Err(why) => self.close(Reason::ExportName(why)),
        }
    }

    /// Finds the export for `EXPORT_NAME`. This option has no error reply, so each refusal ends the
    /// connection. A client that cannot learn the block sizes may address any byte, like a client
    /// that ignores them.
    fn find_for_export_name<D: ExportDirectory + ?Sized>(
        &self,
        data: &[u8],
        directory: &D,
    ) -> Result<ExportInfo, &'static str> {
        if self.lacks_tls() {
            return Err("this listener requires TLS");
        }
        if self.shutting_down {
            return Err("the server is shutting down");
        }
        if self.style == ReplyStyle::Extended {
            return Err("extended headers go with GO only");
        }
        let name = option_data::check_string(data).map_err(|Malformed(why)| why)?;
        match directory.find(name) {
            Lookup::Found(export) => directory.admit(&export).map(|()| export),
            Lookup::TlsRequired => Err("the export is served over TLS only"),
            Lookup::Unknown => Err("there is no such export"),
        }
    }

    fn list<D: ExportDirectory + ?Sized>(
        &mut self,
        option: u32,
        data: &[u8],
        directory: &D,
        out: &mut Vec<u8>,
    ) -> Event {
        if !data.is_empty() {
            return Self::refuse(out, option, ReplyCode::ErrInvalid, "LIST takes no data");
        }
        self.list_on(option, 0, directory, out)
    }

    /// Continues a listing after its first `listed` exports: appends the next batch, or the end.
    pub(super) fn list_on<D: ExportDirectory + ?Sized>(
        &mut self,
        option: u32,
        listed: usize,
        directory: &D,
        out: &mut Vec<u8>,
    ) -> Event {
        let (before, mut count) = (out.len(), listed);
        directory.list(listed, &mut |name, description| {
            let length = u32::try_from(name.len()).expect("names are bounded").to_be_bytes();
            let parts: [&[u8]; 3] = [&length, name.as_bytes(), description.as_bytes()];
            option_data::reply(out, option, ReplyCode::Server, &parts);
            count += 1;
            out.len() - before < LIST_BATCH_BYTES
        });
        if out.len() - before >= LIST_BATCH_BYTES {
            self.state = State::Listing { option, listed: count };
            return Event::Replied;
        }
        self.state = State::OptionHeader;
        Self::acknowledge(out, option)
    }

    fn start_tls(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) -> Event {
        let refusal = match (self.policy, self.tls, data.is_empty()) {
            (TlsPolicy::Off, ..) => Some((ReplyCode::ErrPolicy, "TLS is off on this listener")),
            (_, true, _) => Some((ReplyCode::ErrInvalid, "TLS is already in use")),
            (.., false) => Some((ReplyCode::ErrInvalid, "STARTTLS takes no data")),
            _ => None,
        };
        if let Some((code, message)) = refusal {
            return Self::refuse(out, option, code, message);
        }
        Self::acknowledge(out, option);
        self.state = State::AwaitTls;
        Event::StartTls
    }

    fn structured_reply(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) -> Event {
        if !data.is_empty() {
            return Self::refuse(
                out,
                option,
                ReplyCode::ErrInvalid,
                "STRUCTURED_REPLY takes no data",
            );
        }
        if self.style == ReplyStyle::Extended {
            let message = "extended headers are already in use";
            return Self::refuse(out, option, ReplyCode::ErrExtHeaderReqd, message);
        }
        self.style = ReplyStyle::Structured;
        Self::acknowledge(out, option)
    }

    fn extended_headers(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) -> Event {
        if !data.is_empty() {
            return Self::refuse(
                out,
                option,
                ReplyCode::ErrInvalid,
                "EXTENDED_HEADERS takes no data",
            );
        }
        self.style = ReplyStyle::Extended;
        Self::acknowledge(out, option)
    }

    fn info<D: ExportDirectory + ?Sized>(
        &mut self,
        option: u32,
        data: &[u8],
        directory: &D,
        out: &mut Vec<u8>,
    ) -> Event {
        let request = match InfoRequest::parse(data) {
            Ok(request) => request,
            Err(Malformed(why)) => return Self::refuse(out, option, ReplyCode::ErrInvalid, why),
        };
        let export = match directory.find(request.name) {
            Lookup::Found(export) => export,
            Lookup::TlsRequired if self.policy == TlsPolicy::Optional && !self.tls => {
                let message = "the export is served over TLS only";
                return Self::refuse(out, option, ReplyCode::ErrTlsReqd, message);
            }
            Lookup::TlsRequired | Lookup::Unknown => return Self::unknown_export(out, option),
        };
        if option == OptionCode::Go.wire()
            && let Err(why) = directory.admit(&export)
        {
            return Self::refuse(out, option, ReplyCode::ErrPolicy, why);
        }
        let flags = self.flags_for(&export);
        Self::send_info(out, option, &request, &export, flags);
        Self::acknowledge(out, option);
        if option == OptionCode::Go.wire() {
            return self.enter_transmission(export, flags);
        }
        Event::Replied
    }

    fn send_info(
        out: &mut Vec<u8>,
        option: u32,
        request: &InfoRequest<'_>,
        export: &ExportInfo,
        flags: TransmissionFlags,
    ) {
        let size = export.size_bytes.to_be_bytes();
        option_data::reply_info(
            out,
            option,
            InfoCode::Export,
            &[&size, &flags.bits().to_be_bytes()],
        );
        if request.wants_name {
            option_data::reply_info(out, option, InfoCode::Name, &[export.name.as_bytes()]);
        }
        if request.wants_description {
            option_data::reply_info(
                out,
                option,
                InfoCode::Description,
                &[export.description.as_bytes()],
            );
        }
        let sizes = export.block_sizes;
        if request.wants_block_size || sizes.min > 1 {
            let [min, preferred, max] =
                [sizes.min, sizes.preferred, sizes.max_payload].map(u32::to_be_bytes);
            option_data::reply_info(out, option, InfoCode::BlockSize, &[&min, &preferred, &max]);
        }
    }

    fn unknown_export(out: &mut Vec<u8>, option: u32) -> Event {
        Self::refuse(out, option, ReplyCode::ErrUnknown, "there is no such export")
    }

    /// Checks the needs of both metadata options: structured replies, valid data, a known export.
    fn context_request<'a, D: ExportDirectory + ?Sized>(
        &self,
        data: &'a [u8],
        directory: &D,
    ) -> Result<(ContextRequest<'a>, ExportInfo), (ReplyCode, &'static str)> {
        if self.style == ReplyStyle::Simple {
            return Err((ReplyCode::ErrInvalid, "metadata needs structured replies"));
        }
        let request =
            ContextRequest::parse(data).map_err(|Malformed(why)| (ReplyCode::ErrInvalid, why))?;
        match directory.find(request.export) {
            Lookup::Found(export) => Ok((request, export)),
            Lookup::TlsRequired | Lookup::Unknown => {
                Err((ReplyCode::ErrUnknown, "there is no such export"))
            }
        }
    }

    fn list_contexts<D: ExportDirectory + ?Sized>(
        &self,
        option: u32,
        data: &[u8],
        directory: &D,
        out: &mut Vec<u8>,
    ) -> Event {
        let (request, export) = match self.context_request(data, directory) {
            Ok(found) => found,
            Err((code, message)) => return Self::refuse(out, option, code, message),
        };
        for context in export.contexts.iter().filter(|context| request.lists(context.name())) {
            Self::send_context(out, option, 0, *context);
        }
        Self::acknowledge(out, option)
    }

    fn set_contexts<D: ExportDirectory + ?Sized>(
        &mut self,
        option: u32,
        data: &[u8],
        directory: &D,
        out: &mut Vec<u8>,
    ) -> Event {
        self.selected = None;
        let (request, export) = match self.context_request(data, directory) {
            Ok(found) => found,
            Err((code, message)) => return Self::refuse(out, option, code, message),
        };
        let mut selected = Vec::new();
        for context in MetaContext::ALL {
            if export.contexts.contains(&context) && request.selects(context.name()) {
                let id = selected.len() as u32 + 1;
                Self::send_context(out, option, id, context);
                selected.push(SelectedContext { id, context });
            }
        }
        self.selected = Some((export.name, selected));
        Self::acknowledge(out, option)
    }

    fn send_context(out: &mut Vec<u8>, option: u32, id: u32, context: MetaContext) {
        let parts: [&[u8]; 2] = [&id.to_be_bytes(), context.name().as_bytes()];
        option_data::reply(out, option, ReplyCode::MetaContext, &parts);
    }

    fn selected_for(&self, export: &ExportInfo) -> &[SelectedContext] {
        match &self.selected {
            Some((name, selected)) if *name == export.name => selected,
            _ => &[],
        }
    }

    fn flags_for(&self, export: &ExportInfo) -> TransmissionFlags {
        let extended = self.style == ReplyStyle::Extended;
        let status_payload = extended && !self.selected_for(export).is_empty();
        export.flags_on_wire(self.style != ReplyStyle::Simple, status_payload)
    }

    fn enter_transmission(&mut self, export: ExportInfo, flags: TransmissionFlags) -> Event {
        let contexts = self.selected_for(&export).to_vec();
        self.state = State::Done;
        self.partial = Vec::new();
        Event::Transmission(Box::new(Negotiated {
            export,
            flags,
            style: self.style,
            contexts,
            no_zeroes: self.client_flags.contains(ClientFlags::NO_ZEROES),
            tls: self.tls,
        }))
    }
}
