//! Connection management without sockets.
//!
//! - [`connect`]: MPA startup;
//! - [`half_open`]: startups without a Request, which strangers can make at will;
//! - [`oob`]: connections between queue pairs whose programs exchange QPNs and addresses out of band;
//! - [`ports`]: TCP ports of listeners whose port number another socket has;
//! - [`sidr`]: service ID resolution, from a port to a QPN and a Q_Key.

pub mod connect;
pub mod half_open;
pub mod oob;
pub mod ports;
pub mod sidr;
