use proptest::prelude::*;

use super::*;

/// The requests in `received`, and the error after them, when it arrives in pieces that end at `cuts`.
fn understood(received: &[u8], cuts: &[usize]) -> (Vec<Request>, Option<Malformed>) {
    let (mut frame, mut requests, mut begin) = (Frame::default(), Vec::new(), 0);
    let ends = cuts.iter().copied().filter(|cut| *cut < received.len()).chain([received.len()]);
    for end in ends {
        while begin < end {
            match frame.advance(&received[begin..end]) {
                Ok(None) => break,
                Ok(Some(length)) => {
                    assert!(length > 0 && begin + length <= end);
                    let bytes = Bytes::copy_from_slice(&received[begin..begin + length]);
                    requests.push(Request::read(&bytes).unwrap());
                    begin += length;
                }
                Err(malformed) => return (requests, Some(malformed)),
            }
        }
    }
    (requests, None)
}

fn array(arguments: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", arguments.len()).into_bytes();
    for argument in arguments {
        bytes.extend(format!("${}\r\n", argument.len()).into_bytes());
        bytes.extend_from_slice(argument);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

fn request(arguments: &[&[u8]], is_words: bool) -> Request {
    Request {
        arguments: arguments.iter().map(|argument| Bytes::copy_from_slice(argument)).collect(),
        is_words,
    }
}

#[test]
fn requests_are_arrays_and_lines_of_words() {
    let sent = [
        &array(&[b"SET", b"a\r\n*1", b""]),
        &b"ping\n"[..],
        b"*0\r\n",
        b"*-1\r\n",
        b"\r\n",
        b"  AUTH  name\tsecret \r\n",
        &array(&[b"PING"]),
    ]
    .concat();
    let expected = vec![
        request(&[b"SET", b"a\r\n*1", b""], false),
        request(&[b"ping"], true),
        request(&[], false),
        request(&[], false),
        request(&[], true),
        request(&[b"AUTH", b"name", b"secret"], true),
        request(&[b"PING"], false),
    ];
    assert_eq!(understood(&sent, &[]), (expected.clone(), None));
    let each_byte: Vec<usize> = (1..sent.len()).collect();
    assert_eq!(understood(&sent, &each_byte), (expected, None));
}

#[test]
fn what_is_no_request_is_refused_at_its_first_wrong_byte() {
    let most_words = [&[b'x'; MAX_WORDS - 1][..], b"\n"].concat();
    assert_eq!(understood(&most_words, &[]).1, None);
    for (sent, malformed) in [
        (&b"*1025\r\n"[..], Malformed::Count),
        (b"*9223372036854775808\r\n", Malformed::Count),
        (b"*+1\r\n", Malformed::Count),
        (b"*01\r\n", Malformed::Count),
        (b"*\r\n", Malformed::Count),
        (b"*1\n", Malformed::Count),
        (b"*111111111111111111111111", Malformed::Count),
        (b"*1\r\n:", Malformed::NoString),
        (b"*1\r\n*", Malformed::NoString),
        (b"*1\r\n$-1\r\n", Malformed::Length),
        (b"*1\r\n$65537\r\n", Malformed::Length),
        (b"*1\r\n$1\r\nab\r", Malformed::End),
        (&[b'x'; MAX_WORDS], Malformed::Words),
        (b"POST", Malformed::Http),
        (b"get /", Malformed::Http),
        (b"Host: a", Malformed::Http),
        (b"PUT /a HTTP/1.1\r\n", Malformed::Http),
    ] {
        let shown = String::from_utf8_lossy(sent);
        assert_eq!(understood(sent, &[]), (vec![], Some(malformed)), "{shown}");
        let last = sent.len() - 1;
        if malformed != Malformed::Http && malformed != Malformed::Count && sent.ends_with(b"\n") {
            assert_eq!(understood(&sent[..last], &[]), (vec![], None), "{shown} is refused too early");
        }
    }
}

/// Each argument fits, but all of them together do not.
#[test]
fn a_request_that_is_too_large_is_refused_before_it_arrives() {
    let argument = vec![b'x'; MAX_ARGUMENT];
    let whole = array(&[&argument, &argument]);
    let announced = whole.len() - MAX_ARGUMENT - 2;
    assert_eq!(understood(&whole[..announced - 1], &[]), (vec![], None));
    assert_eq!(understood(&whole[..announced], &[]), (vec![], Some(Malformed::Size)));
    let most = array(&vec![&b""[..]; MAX_ARGUMENTS]);
    assert_eq!(understood(&most, &[]).0[0].arguments.len(), MAX_ARGUMENTS);
}

fn piece() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 0..6)
            .prop_map(|arguments| array(&arguments.iter().map(Vec::as_slice).collect::<Vec<_>>())),
        1 => "[ a-zA-Z0-9\t]{0,20}\r?\n".prop_map(String::into_bytes),
        1 => "[*$:][+-]?[0-9]{0,25}(\r\n)?".prop_map(String::into_bytes),
        1 => prop::collection::vec(any::<u8>(), 0..30),
    ]
}

proptest! {
    #[test]
    fn whatever_arrives_is_understood_alike_in_any_pieces(
        pieces in prop::collection::vec(piece(), 1..8),
        mut cuts in prop::collection::vec(0..400_usize, 0..20),
        flipped in prop::option::of((0..400_usize, any::<u8>())),
    ) {
        let mut sent = pieces.concat();
        if let Some((at, byte)) = flipped && let Some(place) = sent.get_mut(at) {
            *place = byte;
        }
        cuts.sort_unstable();
        let whole = understood(&sent, &[]);
        prop_assert_eq!(&understood(&sent, &cuts), &whole);
        for request in &whole.0 {
            prop_assert!(request.arguments.len() <= MAX_ARGUMENTS);
        }
    }

    #[test]
    fn an_array_is_read_as_it_was_written(arguments in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 1..30)) {
        let arguments: Vec<&[u8]> = arguments.iter().map(Vec::as_slice).collect();
        prop_assert_eq!(understood(&array(&arguments), &[]), (vec![request(&arguments, false)], None));
    }
}

#[test]
fn a_number_is_written_in_one_way() {
    for number in [0, 1, -1, 10, i64::MAX, i64::MIN] {
        assert_eq!(integer(number.to_string().as_bytes()), Some(number));
    }
    for other in
        ["", "-", "-0", "00", "01", "-01", "+1", " 1", "1 ", "1a", "1.0", "9223372036854775808", "\u{663}"]
    {
        assert_eq!(integer(other.as_bytes()), None, "{other}");
    }
}
