//! Tests of the decoder on batches that msgspec 0.22 wrote with vLLM's structures.

use super::*;
use proptest::prelude::*;

/// A batch of vLLM up to 0.22: events are arrays.
const ARRAYS: &str = "93cb3ff8000000000000939eab426c6f636b53746f72656492cff123456789abcdef07c09401cd012cce000111 \
     700202c0a3475055c09291a473616c74c000ae66756c6c5f617474656e74696f6ec0c0c094ac426c6f636b5265 \
     6d6f7665649107a34750550091b0416c6c426c6f636b73436c656172656400";
/// A batch of vLLM since 0.27: events are maps.
const MAPS: &str = "93cb3ff8000000000000938ca474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657392cff1 \
     23456789abcdef07b1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f6964739401cd012cce0001 \
     117002aa626c6f636b5f73697a6502a76c6f72615f6964c0a66d656469756da3475055a96c6f72615f6e616d65 \
     c0aa65787472615f6b6579739291a473616c74c0a967726f75705f69647800b26b765f63616368655f73706563 \
     5f6b696e64ae66756c6c5f617474656e74696f6eaa73657373696f6e5f6964b374772e30313233343536373839 \
     61626364656684a474797065ac426c6f636b52656d6f766564ac626c6f636b5f6861736865739107a66d656469 \
     756da3475055a967726f75705f6964780081a474797065b0416c6c426c6f636b73436c656172656400";
/// A batch with `VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0`: hashes of 32 and 16 bytes, and blocks in an offload
/// tier.
const BYTES: &str = "93cb3ff8000000000000928aa474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657392c420 \
     000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1fc410000102030405060708090a \
     0b0c0d0e0fb1706172656e745f626c6f636b5f68617368c410000102030405060708090a0b0c0d0e0fa9746f6b \
     656e5f696473920102aa626c6f636b5f73697a6501a76c6f72615f696403a66d656469756da3435055a96c6f72 \
     615f6e616d65a26164a967726f75705f69647801b26b765f63616368655f737065635f6b696e64ae736c696469 \
     6e675f77696e646f7784a474797065ac426c6f636b52656d6f766564ac626c6f636b5f68617368657391c42000 \
     0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1fa66d656469756da3435055a96772 \
     6f75705f69647801c0";

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u32> = hex.chars().filter_map(|digit| digit.to_digit(16)).collect();
    digits
        .chunks(2)
        .map(|pair| (pair[0] << 4 | pair[1]) as u8)
        .collect()
}

fn events(payload: &[u8]) -> Result<Vec<KvEvent<'_>>, DecodeError> {
    EventBatch::parse(payload)?.collect()
}

#[test]
fn both_encodings_give_equal_events() {
    let arrays = bytes(ARRAYS);
    let maps = bytes(MAPS);
    for (payload, session_id) in [(&arrays, None), (&maps, Some("tw.0123456789abcdef"))] {
        let events = events(payload).unwrap();
        let [
            KvEvent::Stored(stored),
            KvEvent::Removed(removed),
            KvEvent::AllCleared,
        ] = events[..]
        else {
            panic!("{events:?}")
        };
        let hashes: Vec<u64> = stored.block_hashes.iter().collect();
        assert_eq!(
            (hashes, stored.parent),
            (vec![0xf123_4567_89ab_cdef, 7], None)
        );
        assert_eq!(
            (stored.block_size, stored.medium, stored.group),
            (2, Medium::Gpu, Some(0))
        );
        assert_eq!(stored.cache_kind, CacheKind::Contiguous);
        assert_eq!(stored.session_id, session_id);
        assert_eq!(removed.block_hashes.iter().collect::<Vec<_>>(), [7]);
        assert_eq!((removed.medium, removed.group), (Medium::Gpu, Some(0)));
    }
}

#[test]
fn the_last_8_bytes_of_a_hash_count() {
    let payload = bytes(BYTES);
    let events = events(&payload).unwrap();
    let [KvEvent::Stored(stored), KvEvent::Removed(_)] = events[..] else {
        panic!("{events:?}")
    };
    let hashes: Vec<u64> = stored.block_hashes.iter().collect();
    assert_eq!(hashes, [0x1819_1a1b_1c1d_1e1f, 0x0809_0a0b_0c0d_0e0f]);
    assert_eq!(stored.parent, Some(0x0809_0a0b_0c0d_0e0f));
    assert_eq!(
        (stored.medium, stored.cache_kind),
        (Medium::Offloaded, CacheKind::Other)
    );
}

#[test]
fn unknown_keys_and_long_map_heads_are_read() {
    let long_head = MAPS.replacen("8ca474797065", "de000ea474797065", 1);
    // "new": {"a": [1.5]}, 9: nil
    let unknown = long_head.replacen(
        "ac626c6f636b5f686173686573",
        "a36e657781a16191cb3ff8000000000000\
                                      09c0ac626c6f636b5f686173686573",
        1,
    );
    let payload = bytes(&unknown);
    let expected = bytes(MAPS);
    assert_eq!(events(&payload).unwrap(), events(&expected).unwrap());
}

#[test]
fn old_events_and_unknown_types_are_read() {
    // [0.0, [["BlockStored", [5], 4, [1], 1, nil, "GPU"], ["New", 1], {"type": "New", "a": []}]]
    let payload = [
        &b"\x92\xcb\0\0\0\0\0\0\0\0\x93\x97\xabBlockStored\x91\x05\x04\x91\x01\x01\xc0\xa3GPU"[..],
        b"\x92\xa3New\x01\x82\xa4type\xa3New\xa1a\x90",
    ]
    .concat();
    let events = events(&payload).unwrap();
    let [KvEvent::Stored(stored), KvEvent::Unknown, KvEvent::Unknown] = events[..] else {
        panic!("{events:?}")
    };
    assert_eq!((stored.parent, stored.group), (Some(4), None));
}

#[test]
fn a_truncated_batch_is_an_error() {
    for hex in [ARRAYS, MAPS, BYTES] {
        let whole = bytes(hex);
        // A batch without only its last byte is valid: this byte is the data-parallel rank, which the decoder
        // does not read.
        for length in 0..whole.len() - 1 {
            assert!(events(&whole[..length]).is_err(), "{length}");
        }
    }
}

proptest! {
    #[test]
    fn any_input_ends_without_a_panic(
        input in proptest::collection::vec(any::<u8>(), 0..200),
        position in 0_usize..300, byte in any::<u8>(),
    ) {
        let _ = events(&input);
        for hex in [ARRAYS, MAPS, BYTES] {
            let mut payload = bytes(hex);
            let position = position % payload.len();
            payload[position] = byte;
            if let Ok(batch) = EventBatch::parse(&payload) {
                for event in batch {
                    if let Ok(KvEvent::Stored(stored)) = event {
                        prop_assert_eq!(stored.block_hashes.iter().count(), stored.block_hashes.len());
                    }
                }
            }
        }
    }
}
