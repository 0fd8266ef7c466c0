//! What a session says after a message, and after the outcome of an action.

use super::super::proto::Reply;
use super::action::Action;
use super::refusal::Refusal;

/// The server's next step.
#[derive(Debug, PartialEq, Eq)]
pub enum Step<F> {
    /// Nothing: receive the next message.
    Done,
    /// Send the reply, then receive the next message.
    Reply(Reply<F>),
    /// Carry the action out, then call the method for its outcome. Receive nothing meanwhile.
    Act(Action<F>),
    /// Log the reason and send the reply, then receive the next message.
    Refused {
        /// Why the message was refused.
        reason: Refusal,
        /// The reply that says so.
        reply: Reply<F>,
    },
    /// Log the reason and close the connection: the message has no form for a refusal.
    Close(Refusal),
}
