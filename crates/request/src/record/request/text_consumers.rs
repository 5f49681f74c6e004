//! The consumers of the text of a request.

/// A consumer of the text of requests, as one bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextConsumer(u8);

/// The consumers for which the text of a request is retained. Each consumer samples independently.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TextConsumers(u8);

impl TextConsumer {
    /// The consumer with this number, from 0 to 7. Each consumer of a gateway has a number of its own.
    pub const fn new(number: u8) -> Self {
        Self(1 << (number % 8))
    }
}

impl TextConsumers {
    /// Adds a consumer to the set.
    pub const fn add(&mut self, consumer: TextConsumer) {
        self.0 |= consumer.0;
    }

    /// Whether the consumer gets the text.
    pub const fn has(self, consumer: TextConsumer) -> bool {
        self.0 & consumer.0 != 0
    }

    /// Whether the text has no consumer, so that it need not be stored.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consumers_are_independent() {
        let first = TextConsumer::new(0);
        let last = TextConsumer::new(7);
        let mut consumers = TextConsumers::default();
        assert!(consumers.is_empty());
        consumers.add(last);
        assert!(consumers.has(last) && !consumers.has(first) && !consumers.is_empty());
    }
}
