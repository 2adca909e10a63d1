//! placeholder, replaced when the queue pair API is in
use std::net::IpAddr;

use crate::control::{EndpointSpec, Offer};
use crate::error::{PerfError, Result};
use crate::host::Side;
use crate::measure::{Arrival, Flow, Geometry, PingPong, Want};

#[derive(Debug)]
pub(crate) struct Ud;

impl Ud {
    pub(crate) fn open(_: &EndpointSpec, _: IpAddr, _: Side) -> Result<(Self, Offer)> {
        Err(PerfError::Stack {
            what: "open",
            reason: "not yet".to_owned(),
        })
    }
    pub(crate) fn connect(&mut self, _: IpAddr, _: &Offer) -> Result<()> {
        Ok(())
    }
    pub(crate) fn geometry(&self, g: u64, w: Option<u64>) -> Result<Geometry> {
        Ok(Geometry::datagram(1, 1, 1, g, w))
    }
    pub(crate) fn configure(&mut self, _: &Geometry) -> Result<()> {
        Ok(())
    }
}
impl PingPong for Ud {
    fn send(&mut self, _: u64) -> Result<()> {
        Ok(())
    }
    fn try_receive(&mut self) -> Result<Option<u64>> {
        Ok(None)
    }
}
impl Flow for Ud {
    fn start_round(&mut self, _: u16) -> Result<()> {
        Ok(())
    }
    fn transmit(&mut self, _: u64, _: u64) -> Result<u64> {
        Ok(0)
    }
    fn poll(&mut self, _: Want, _: bool) -> Result<Arrival> {
        Ok(Arrival::Nothing)
    }
    fn credit(&mut self, _: u64) -> Result<()> {
        Ok(())
    }
}
