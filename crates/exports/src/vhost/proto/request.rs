//! The numbers and names of the messages that a front end sends.

/// Defines the messages: the variant, its number and its name in the protocol text.
macro_rules! requests {
    ($($(#[$doc:meta])* $variant:ident = $number:literal, $name:literal;)*) => {
        /// A message of the front end ("Front-end message types" of the protocol text). Those of
        /// other devices than block devices are missing, and those of features that this back end
        /// does not have.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Request { $($(#[$doc])* $variant = $number,)* }

        impl Request {
            /// All of them.
            pub const ALL: &'static [Request] = &[$(Request::$variant,)*];

            /// The message with this number; `None` if this back end does not have it.
            pub const fn from_number(number: u32) -> Option<Self> {
                match number {
                    $($number => Some(Request::$variant),)*
                    _ => None,
                }
            }

            /// Its name in the protocol text, without the prefix `VHOST_USER_`.
            pub const fn name(self) -> &'static str {
                match self { $(Request::$variant => $name,)* }
            }
        }
    };
}

requests! {
    /// Tells the features of the device.
    GetFeatures = 1, "GET_FEATURES";
    /// Chooses among them.
    SetFeatures = 2, "SET_FEATURES";
    /// Begins a session.
    SetOwner = 3, "SET_OWNER";
    /// Is obsolete. Old front ends mean by it what they say now by `RESET_DEVICE`.
    ResetOwner = 4, "RESET_OWNER";
    /// Sets all regions of memory.
    SetMemTable = 5, "SET_MEM_TABLE";
    /// Sets the log of a migration.
    SetLogBase = 6, "SET_LOG_BASE";
    /// Sets the descriptor that may be signalled after a change of the log.
    SetLogFd = 7, "SET_LOG_FD";
    /// Sets the size of a queue.
    SetVringNum = 8, "SET_VRING_NUM";
    /// Sets the addresses of a queue.
    SetVringAddr = 9, "SET_VRING_ADDR";
    /// Sets the index from which on a queue is served.
    SetVringBase = 10, "SET_VRING_BASE";
    /// Stops a queue and tells that index.
    GetVringBase = 11, "GET_VRING_BASE";
    /// Sets the descriptor by which the guest tells of new requests; starts the queue.
    SetVringKick = 12, "SET_VRING_KICK";
    /// Sets the descriptor by which the guest is told of ended requests.
    SetVringCall = 13, "SET_VRING_CALL";
    /// Sets the descriptor by which the front end is told of a broken queue.
    SetVringErr = 14, "SET_VRING_ERR";
    /// Tells the features of the protocol.
    GetProtocolFeatures = 15, "GET_PROTOCOL_FEATURES";
    /// Chooses among them.
    SetProtocolFeatures = 16, "SET_PROTOCOL_FEATURES";
    /// Tells the most queues.
    GetQueueNum = 17, "GET_QUEUE_NUM";
    /// Enables or disables a queue.
    SetVringEnable = 18, "SET_VRING_ENABLE";
    /// Sets the channel for requests of the back end.
    SetBackendReqFd = 21, "SET_BACKEND_REQ_FD";
    /// Reads the configuration space.
    GetConfig = 24, "GET_CONFIG";
    /// Writes the configuration space.
    SetConfig = 25, "SET_CONFIG";
    /// Makes an in-flight region.
    GetInflightFd = 31, "GET_INFLIGHT_FD";
    /// Sets the in-flight region.
    SetInflightFd = 32, "SET_INFLIGHT_FD";
    /// Resets the device.
    ResetDevice = 34, "RESET_DEVICE";
    /// Tells the most regions of memory.
    GetMaxMemSlots = 36, "GET_MAX_MEM_SLOTS";
    /// Adds a region of memory.
    AddMemReg = 37, "ADD_MEM_REG";
    /// Removes a region of memory.
    RemMemReg = 38, "REM_MEM_REG";
    /// Sets the device status.
    SetStatus = 39, "SET_STATUS";
    /// Tells the device status.
    GetStatus = 40, "GET_STATUS";
}

impl Request {
    /// Its number in a header.
    pub const fn number(self) -> u32 {
        self as u32
    }
}

impl std::fmt::Display for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_requests_are_the_same() {
        for request in Request::ALL {
            assert_eq!(Request::from_number(request.number()), Some(*request), "{request}");
        }
        assert_eq!(Request::GetVringBase.number(), 11);
        assert_eq!(Request::from_number(22), None, "no IOTLB");
        assert_eq!(Request::from_number(u32::MAX), None);
    }
}
