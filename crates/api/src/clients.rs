//! The clients that cause the most work. A client is a tenant and key, or an address if no keys are configured.

document! {
    /// One client, with its requests that ended in the last minute and its open streams.
    pub struct ClientSummary {
        /// Name of the tenant. `None`: the client has no key.
        tenant: Option<String>,
        /// Name of the key, not the key itself. `None`: the client has no key.
        key: Option<String>,
        /// IP address. `None`: the client has a key.
        address: Option<String>,
        /// Number of requests that ended in the last minute.
        requests: u64,
        /// Prompt tokens of the ended requests that reached a backend, and of the open streams.
        prompt_tokens: u64,
        /// Output tokens of the ended requests.
        output_tokens: u64,
        /// Number of refused requests that ended in the last minute.
        refused: u64,
        /// Number of requests that ended in the last minute with another 4xx status.
        rejected: u64,
        /// Number of open streams.
        open_streams: u64,
        /// The largest share, from 0 to 1, of this client in any kind of work. `share_of` names the kind.
        share: f64,
        /// The kind of work of `share`: `prompt tokens`, `open streams` or `requests`.
        share_of: String,
    }
}

/// Maximum number of clients in the list.
const MAX_RANKED: usize = 10;
/// Minimum share of the work from which [`main_client`] names a client.
const MIN_NAMED_SHARE: f64 = 0.5;

/// Returns the clients with the largest share in one kind of work (prompt tokens, open streams or
/// requests), the largest share first.
pub fn largest_clients(mut clients: Vec<ClientSummary>) -> Vec<ClientSummary> {
    raise_shares(&mut clients, "prompt tokens", 1_000, |client| {
        client.prompt_tokens
    });
    raise_shares(&mut clients, "open streams", 20, |client| {
        client.open_streams
    });
    raise_shares(&mut clients, "requests", 20, |client| client.requests);
    clients.sort_by(|a, b| {
        b.share
            .total_cmp(&a.share)
            .then_with(|| a.name().cmp(&b.name()))
    });
    clients.truncate(MAX_RANKED);
    clients
}

/// Sets the share of each client whose share in this kind of work is greater than its stored share. If all
/// clients together have less work than `least`, no share changes.
fn raise_shares(
    clients: &mut [ClientSummary],
    kind: &str,
    least: u64,
    work: impl Fn(&ClientSummary) -> u64,
) {
    let total: u64 = clients.iter().map(&work).sum();
    if total < least {
        return;
    }
    for client in clients {
        let share = work(client) as f64 / total as f64;
        if share > client.share {
            client.share = share;
            kind.clone_into(&mut client.share_of);
        }
    }
}

/// A sentence that names the client with the largest share of the work. `None`: there is only one client, or
/// its share is small.
pub fn main_client(ranked: &[ClientSummary]) -> Option<String> {
    let [first, _, ..] = ranked else { return None };
    let when = if first.share_of == "open streams" {
        ""
    } else {
        " of the last minute"
    };
    (first.share >= MIN_NAMED_SHARE).then(|| {
        let percent = 100.0 * first.share;
        format!(
            "{percent:.0} % of the {}{when} are of {}",
            first.share_of,
            first.name()
        )
    })
}

impl ClientSummary {
    /// The name of the client for texts: `tenant search, key batch` or `client 10.0.0.7`.
    pub fn name(&self) -> String {
        match (&self.tenant, &self.key, &self.address) {
            (Some(tenant), Some(key), _) => format!("tenant {tenant}, key {key}"),
            (_, _, address) => format!("client {}", address.as_deref().unwrap_or("–")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(
        address: &str,
        requests: u64,
        prompt_tokens: u64,
        open_streams: u64,
    ) -> ClientSummary {
        let address = Some(address.to_owned());
        ClientSummary {
            address,
            requests,
            prompt_tokens,
            open_streams,
            ..ClientSummary::default()
        }
    }

    #[test]
    fn clients_are_ranked_by_their_largest_share() {
        let ranked = largest_clients(vec![
            client("10.0.0.1", 90, 1_000, 0),
            client("10.0.0.2", 5, 9_000, 1),
            client("10.0.0.3", 5, 0, 99),
        ]);
        let shown: Vec<_> = ranked
            .iter()
            .map(|it| (it.address.as_deref().unwrap(), &*it.share_of))
            .collect();
        let expected = [
            ("10.0.0.3", "open streams"),
            ("10.0.0.1", "requests"),
            ("10.0.0.2", "prompt tokens"),
        ];
        assert_eq!(shown, expected);
        let sentence = "99 % of the open streams are of client 10.0.0.3";
        assert_eq!(main_client(&ranked).as_deref(), Some(sentence));
    }

    #[test]
    fn the_main_client_causes_most_work_of_several() {
        assert_eq!(
            main_client(&largest_clients(vec![client("10.0.0.1", 9, 9, 9)])),
            None
        );
        let few = vec![client("10.0.0.1", 9, 900, 9), client("10.0.0.2", 1, 0, 0)];
        assert_eq!(
            main_client(&largest_clients(few)),
            None,
            "shares of little work mean nothing"
        );
        let equal = (1..20)
            .map(|last| client(&format!("10.0.0.{last}"), 5, 5, 5))
            .collect();
        let ranked = largest_clients(equal);
        assert_eq!((ranked.len(), main_client(&ranked)), (MAX_RANKED, None));
        let with_key = ClientSummary {
            tenant: Some("search".into()),
            key: Some("batch".into()),
            address: None,
            ..client("", 5, 3_000, 0)
        };
        let sentence =
            "75 % of the prompt tokens of the last minute are of tenant search, key batch";
        let ranked = largest_clients(vec![client("10.0.0.1", 5, 1_000, 0), with_key]);
        assert_eq!(main_client(&ranked).as_deref(), Some(sentence));
    }
}
