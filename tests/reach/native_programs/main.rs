// A Rust program: ./main NBYTES. Threads of the standard library exchange numbers, panic and are joined.
use std::sync::mpsc::channel;
use std::thread;

#[link(name = "program", kind = "static")]
extern "C" {
    fn start_cuda(nbytes: u64);
    fn start_resting();
    fn answer_lines() -> i32;
    fn count_round();
    fn went_wrong(what: *const u8);
}

fn exchange() {
    std::panic::set_hook(Box::new(|_| {}));
    let mut round: u64 = 0;
    loop {
        round += 1;
        let (to, from) = channel();
        let sender = thread::spawn(move || {
            for number in 0..50 {
                to.send(number * round).unwrap();
            }
            if round % 3 == 0 {
                panic!("on purpose");
            }
            round
        });
        let sum: u64 = from.iter().sum();
        let ended = sender.join();
        if sum != 1225 * round || ended.is_err() != (round % 3 == 0) {
            unsafe { went_wrong(b"sum\0".as_ptr()) };
        }
        unsafe { count_round() };
    }
}

fn main() {
    let nbytes = std::env::args().nth(1).and_then(|word| word.parse().ok()).unwrap_or(0);
    unsafe { start_cuda(nbytes) };
    thread::spawn(exchange);
    unsafe { start_resting() };
    std::process::exit(unsafe { answer_lines() });
}
