use crate::input::Input;

const FRAME: usize = 20;

/// So many bytes, each of them the rest of its place by 251.
fn counted(size: usize) -> Vec<u8> {
    (0..size).map(|at| (at % 251) as u8).collect()
}

#[test]
fn of_many_small_frames_that_go_one_by_one_the_rest_is_seldom_moved() {
    let bytes = counted(26_000 * FRAME);
    let mut input = Input::default();
    input.push(&bytes, FRAME);
    let (mut moved, mut at) = (0, 0);
    while !input.is_empty() {
        assert_eq!(input[..FRAME], bytes[at..at + FRAME]);
        at += FRAME;
        let expected = input[FRAME..].as_ptr();
        input.done(FRAME);
        if !input.is_empty() && input.as_ptr() != expected {
            moved += input.len();
        }
        assert!(input.capacity() <= 2 * input.len() + 2 * FRAME + 16_384);
    }
    assert!(moved <= bytes.len(), "{moved}");
}

#[test]
fn what_comes_in_small_pieces_behind_a_whole_frame_seldom_makes_the_buffer_anew() {
    let mut input = Input::default();
    let (bytes, mut grown) = (counted(300_000), 0);
    for piece in bytes.chunks(30) {
        let before = input.capacity();
        input.push(piece, FRAME);
        grown += usize::from(input.capacity() != before);
    }
    assert_eq!(*input, *bytes);
    assert!(grown < 20, "{grown}");
    assert!(input.capacity() <= 2 * bytes.len());
}

#[test]
fn for_a_frame_that_is_not_whole_no_more_is_kept_than_it_needs() {
    let mut input = Input::default();
    for piece in counted(90_000).chunks(7_000) {
        input.push(piece, 100_000);
    }
    assert!(input.capacity() <= 100_000);
}

#[test]
fn a_large_frame_is_taken_out_from_behind_what_was_dealt_with() {
    let bytes = counted(50_000);
    let mut input = Input::default();
    input.push(&bytes, FRAME);
    input.done(10);
    assert_eq!(input.split(40_000), bytes[10..40_010]);
    assert_eq!(*input, bytes[40_010..]);
}
