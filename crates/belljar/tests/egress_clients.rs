//! Unmodified programs reach the hosts that rules allow, without proxy variables, and no others.

mod support;

use support::{Who, World, for_each_user_in_a_world};

fn curl_reaches_what_is_allowed(who: Who) {
    let mut world = World::new(who);
    world.rules(&["{domain: allowed.example.com, ports: [443, 80]}"], "");
    let outcome = world.shell("curl -sS https://allowed.example.com/one && curl -sS http://allowed.example.com/two");
    println!("{outcome:#?} {:#?}", world.seen());
    outcome.assert_exit(0);
    let outcome = world.shell("curl -sS https://other.example.com/one; curl -sS https://93.184.216.35/");
    println!("{outcome:#?} {:#?}", world.seen());
    panic!();
}

for_each_user_in_a_world!(curl_reaches_what_is_allowed);
