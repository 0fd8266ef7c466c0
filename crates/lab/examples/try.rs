fn main() {
    let t: Vec<u64> = std::env::args().skip(1).map(|a| a.parse().unwrap()).collect();
    let o = drystone_lab::Options {
        runs: t[0] as u32,
        runtime_ns: t[1] * 1_000_000,
        threads: t[2] as u32,
        chart: false,
        kernel: false,
    };
    println!("{}", drystone_lab::run("mq-deadline", &o, &mut |l| eprintln!("{l}")).unwrap().text());
}
