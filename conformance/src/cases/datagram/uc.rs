pub(super) const CASES: &[super::Case] = &[];
