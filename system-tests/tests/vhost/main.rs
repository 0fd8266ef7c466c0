//! The back end of vhost-user with front ends and a driver that others wrote.

mod device;
mod driver;
mod frontend;
mod socket;
