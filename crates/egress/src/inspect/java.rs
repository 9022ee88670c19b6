//! Trusted certificates in the form that Java reads: PKCS #12 (RFC 7292) without encryption or password, as a store of
//! certificates alone needs neither.

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use yasna::models::ObjectIdentifier;
use yasna::{DERWriter, Tag};

const DATA: &[u64] = &[1, 2, 840, 113_549, 1, 7, 1];
const CERTIFICATE_BAG: &[u64] = &[1, 2, 840, 113_549, 1, 12, 10, 1, 3];
const X509: &[u64] = &[1, 2, 840, 113_549, 1, 9, 22, 1];
const FRIENDLY_NAME: &[u64] = &[1, 2, 840, 113_549, 1, 9, 20];
/// Java takes a certificate for a trusted one if it has this attribute.
const TRUSTED_KEY_USAGE: &[u64] = &[2, 16, 840, 1, 113_894, 746_875, 1, 1];
const ANY_USAGE: &[u64] = &[2, 5, 29, 37, 0];

/// The certificates of a PEM bundle as a trust store for Java. What is no certificate in it is left out.
#[must_use]
pub fn java_trust_store(bundle: &[u8]) -> Vec<u8> {
    let certificates: Vec<CertificateDer<'_>> = CertificateDer::pem_slice_iter(bundle)
        .filter_map(Result::ok)
        .collect();
    let bags = yasna::construct_der(|writer| {
        writer.write_sequence(|writer| {
            for (number, certificate) in certificates.iter().enumerate() {
                write_bag(writer.next(), number, certificate);
            }
        });
    });
    let safes = yasna::construct_der(|writer| {
        writer.write_sequence(|writer| write_data(writer.next(), &bags));
    });
    yasna::construct_der(|writer| {
        writer.write_sequence(|writer| {
            writer.next().write_u8(3);
            write_data(writer.next(), &safes);
        });
    })
}

fn identifier(numbers: &[u64]) -> ObjectIdentifier {
    ObjectIdentifier::from_slice(numbers)
}

/// A `ContentInfo` with plain bytes.
fn write_data(writer: DERWriter<'_>, bytes: &[u8]) {
    writer.write_sequence(|writer| {
        writer.next().write_oid(&identifier(DATA));
        writer
            .next()
            .write_tagged(Tag::context(0), |writer| writer.write_bytes(bytes));
    });
}

fn write_bag(writer: DERWriter<'_>, number: usize, certificate: &[u8]) {
    writer.write_sequence(|writer| {
        writer.next().write_oid(&identifier(CERTIFICATE_BAG));
        writer.next().write_tagged(Tag::context(0), |writer| {
            writer.write_sequence(|writer| {
                writer.next().write_oid(&identifier(X509));
                writer
                    .next()
                    .write_tagged(Tag::context(0), |writer| writer.write_bytes(certificate));
            });
        });
        writer.next().write_set(|writer| {
            writer.next().write_sequence(|writer| {
                writer.next().write_oid(&identifier(FRIENDLY_NAME));
                writer.next().write_set(|writer| {
                    let name = format!("belljar-{number}");
                    let wide: Vec<u8> = name.bytes().flat_map(|byte| [0, byte]).collect();
                    write_bmp_string(writer.next(), &wide);
                });
            });
            writer.next().write_sequence(|writer| {
                writer.next().write_oid(&identifier(TRUSTED_KEY_USAGE));
                writer
                    .next()
                    .write_set(|writer| writer.next().write_oid(&identifier(ANY_USAGE)));
            });
        });
    });
}

fn write_bmp_string(writer: DERWriter<'_>, wide: &[u8]) {
    const BMP_STRING: Tag = Tag {
        tag_class: yasna::TagClass::Universal,
        tag_number: 30,
    };
    writer.write_tagged_implicit(BMP_STRING, |writer| writer.write_bytes(wide));
}
