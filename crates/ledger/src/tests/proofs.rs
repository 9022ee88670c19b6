//! Roots and proofs against known answers and against the naive tree.

use proptest::prelude::*;

use super::kit::{self, entry, naive_root};
use crate::tree::Edge;
use crate::{ConsistencyProof, Hash, InclusionProof, Reader};

fn hex(text: &str) -> Vec<u8> {
    (0..text.len())
        .step_by(2)
        .map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap())
        .collect()
}

/// Inputs and roots of the certificate-transparency test vectors.
const INPUTS: [&str; 8] = [
    "",
    "00",
    "10",
    "2021",
    "3031",
    "40414243",
    "5051525354555657",
    "606162636465666768696a6b6c6d6e6f",
];
const ROOTS: [&str; 8] = [
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
];

#[test]
fn known_roots() {
    assert_eq!(
        Hash::of_nothing().0[..],
        hex("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")
    );
    let mut edge = Edge::default();
    for (input, root) in INPUTS.iter().zip(ROOTS) {
        edge.push(Hash::of_entry(&hex(input)), |_, _| {});
        assert_eq!(edge.root().0[..], hex(root));
    }
}

#[test]
fn known_proofs() {
    let dir = tempfile::tempdir().unwrap();
    let (mut ledger, _) = kit::open(dir.path()).unwrap();
    for input in INPUTS {
        ledger.append(&hex(input)).unwrap();
    }
    ledger.commit(crate::Durability::Crash).unwrap();
    let reader = Reader::open(dir.path()).unwrap();
    let texts =
        |hashes: &[Hash]| -> Vec<Vec<u8>> { hashes.iter().map(|hash| hash.0.to_vec()).collect() };
    let inclusion = reader.prove_inclusion(5, 8).unwrap();
    let expected = [
        "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
        "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    ];
    assert_eq!(texts(&inclusion.hashes), expected.map(hex));
    let consistency = reader.prove_consistency(6, 8).unwrap();
    let expected = [
        "0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a",
        "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    ];
    assert_eq!(texts(&consistency.hashes), expected.map(hex));
}

/// RFC 6962, sections 2.1.1 and 2.1.2, as written there.
fn naive_path(m: usize, leaves: &[Hash]) -> Vec<Hash> {
    if leaves.len() == 1 {
        return Vec::new();
    }
    let k = leaves.len().next_power_of_two() / 2;
    let (mut path, rest) = if m < k {
        (naive_path(m, &leaves[..k]), &leaves[k..])
    } else {
        (naive_path(m - k, &leaves[k..]), &leaves[..k])
    };
    path.push(naive_root(rest));
    path
}

fn naive_subproof(m: usize, leaves: &[Hash], whole: bool) -> Vec<Hash> {
    if m == leaves.len() {
        return if whole {
            Vec::new()
        } else {
            vec![naive_root(leaves)]
        };
    }
    let k = leaves.len().next_power_of_two() / 2;
    let (mut path, rest) = if m <= k {
        (naive_subproof(m, &leaves[..k], whole), &leaves[k..])
    } else {
        (naive_subproof(m - k, &leaves[k..], false), &leaves[..k])
    };
    path.push(naive_root(rest));
    path
}

const SIZE: usize = 700;

fn log() -> (tempfile::TempDir, Reader, Vec<Hash>) {
    let dir = tempfile::tempdir().unwrap();
    kit::make(dir.path(), SIZE as u64, 333);
    let reader = Reader::open(dir.path()).unwrap();
    let leaves = (0..SIZE as u64)
        .map(|n| Hash::of_entry(&entry(n)))
        .collect();
    (dir, reader, leaves)
}

fn check_inclusion(reader: &Reader, leaves: &[Hash], index: usize, size: usize, root: &Hash) {
    let proof = reader.prove_inclusion(index as u64, size as u64).unwrap();
    assert_eq!(proof.hashes, naive_path(index, &leaves[..size]));
    assert!(proof.verify(&leaves[index], root));
    assert!(
        !proof.verify(&leaves[(index + 1) % leaves.len()], root),
        "another entry"
    );
    for wrong in spoil(&proof.hashes) {
        let proof = InclusionProof {
            hashes: wrong,
            ..proof
        };
        assert!(!proof.verify(&leaves[index], root));
    }
    let higher = InclusionProof {
        size: 2 * (size as u64).next_power_of_two(),
        ..proof.clone()
    };
    assert!(
        !higher.verify(&leaves[index], root),
        "a tree with more levels"
    );
    let elsewhere = InclusionProof {
        index: (index as u64 + 1) % size as u64,
        ..proof
    };
    assert!(
        size == 1 || !elsewhere.verify(&leaves[index], root),
        "another place"
    );
}

fn check_consistency(
    reader: &Reader,
    leaves: &[Hash],
    old: usize,
    new: usize,
    roots: (&Hash, &Hash),
) {
    let proof = reader.prove_consistency(old as u64, new as u64).unwrap();
    let expected = if old == 0 {
        Vec::new()
    } else {
        naive_subproof(old, &leaves[..new], true)
    };
    assert_eq!(proof.hashes, expected);
    let (old_root, new_root) = roots;
    assert!(proof.verify(old_root, new_root));
    let higher = ConsistencyProof {
        new: 2 * (new as u64 + 1).next_power_of_two(),
        ..proof.clone()
    };
    assert!(old == 0 || !higher.verify(old_root, new_root));
    let other = Hash::of_entry(b"other");
    assert!(!proof.verify(&other, new_root));
    assert!(
        old == 0 || !proof.verify(old_root, &other),
        "the empty log is the beginning of any"
    );
    for wrong in spoil(&proof.hashes) {
        let proof = ConsistencyProof {
            hashes: wrong,
            ..proof
        };
        assert!(!proof.verify(old_root, new_root));
    }
}

/// Proofs that are almost right: a hash too few, one too many, one changed.
fn spoil(hashes: &[Hash]) -> Vec<Vec<Hash>> {
    let mut spoiled = vec![[hashes, &[Hash::of_nothing()]].concat()];
    if let [rest @ .., _] = hashes {
        spoiled.push(rest.to_vec());
    }
    for n in 0..hashes.len() {
        let mut one = hashes.to_vec();
        one[n].0[n % 32] ^= 1 << (n % 8);
        spoiled.push(one);
    }
    spoiled
}

#[test]
fn every_proof_of_small_logs_agrees_with_the_naive_tree() {
    let (_dir, reader, leaves) = log();
    let roots: Vec<_> = (0..=40).map(|size| naive_root(&leaves[..size])).collect();
    for size in 0..=40 {
        assert_eq!(reader.root_at(size as u64).unwrap(), roots[size]);
        for index in 0..size {
            check_inclusion(&reader, &leaves, index, size, &roots[size]);
        }
        for old in 0..=size {
            check_consistency(&reader, &leaves, old, size, (&roots[old], &roots[size]));
        }
    }
}

#[test]
fn proofs_out_of_range_are_refused() {
    let (_dir, reader, _) = log();
    let size = SIZE as u64;
    assert!(reader.prove_inclusion(size, size).is_err());
    assert!(reader.prove_inclusion(3, 3).is_err());
    assert!(reader.prove_inclusion(0, size + 1).is_err());
    assert!(reader.prove_consistency(5, 4).is_err());
    assert!(reader.prove_consistency(5, size + 1).is_err());
}

#[test]
fn proofs_across_tiles_agree_with_the_naive_tree() {
    let (_dir, reader, leaves) = log();
    let sizes = [255, 256, 257, 300, 511, 512, 513, 699, 700];
    let roots: Vec<_> = sizes
        .iter()
        .map(|size| naive_root(&leaves[..*size]))
        .collect();
    for (size, root) in sizes.iter().zip(&roots) {
        for index in [0, 1, 127, 128, 254, size / 2, size - 1] {
            check_inclusion(&reader, &leaves, index, *size, root);
        }
        for (old, old_root) in sizes.iter().zip(&roots).filter(|(old, _)| *old <= size) {
            check_consistency(&reader, &leaves, *old, *size, (old_root, root));
        }
    }
}

#[test]
fn any_proof_of_a_larger_log_agrees_with_the_naive_tree() {
    let (_dir, reader, leaves) = log();
    let config = ProptestConfig {
        cases: 150,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    proptest!(config, |(size in 1..=SIZE, part in 0.0..1.0f64)| {
        let index = ((size as f64 * part) as usize).min(size - 1);
        let root = naive_root(&leaves[..size]);
        check_inclusion(&reader, &leaves, index, size, &root);
        let old_root = naive_root(&leaves[..index]);
        check_consistency(&reader, &leaves, index, size, (&old_root, &root));
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// The tree of any size up to a few tiles, without a log on disk.
    #[test]
    fn the_edge_has_the_root_of_the_naive_tree(size in 0usize..1200, seed in any::<u64>()) {
        let leaves: Vec<_> = (0..size as u64).map(|n| Hash::of_entry(&(seed ^ n).to_be_bytes())).collect();
        let mut edge = Edge::default();
        let mut tiles: Vec<Vec<Hash>> = vec![Vec::new(); 3];
        for leaf in &leaves {
            edge.push(*leaf, |level, hash| tiles[level as usize].push(hash));
        }
        prop_assert_eq!(edge.root(), naive_root(&leaves));
        prop_assert_eq!(tiles[1].len(), size / 256);
        let again = Edge::from_tiles(size as u64, |level| {
            let hashes = &tiles[level as usize];
            Ok::<_, ()>(hashes[hashes.len() / 256 * 256..].to_vec())
        });
        prop_assert_eq!(again, Ok(edge));
    }
}
