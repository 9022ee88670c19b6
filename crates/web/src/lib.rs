//! The supervisor's web server: the operator's protocol over TCP, for people with tokens.
//!
//! Nothing is read or changed without a token, but for two words about health and the dashboard's own files, which hold no data.
//! Who may ask what is in one table, `belljar_api::OPERATOR_ROUTES`, and the web's own routes are in [`WEB_ROUTES`]; both are checked before a
//! request's body is read.
//!
//! | what is tried | what stands in its way |
//! |---|---|
//! | a page from elsewhere asks with the browser's cookie | `SameSite=Strict`, the `Origin`, `Sec-Fetch-Site`, and for changes a value that only our pages can read |
//! | a name from elsewhere points at this machine | only our own names are answered |
//! | tokens are guessed | 256 random bits; failed logins are limited |
//! | the file of tokens is read | it holds hashes |
//! | connections are opened and kept | strangers make way; heads, bodies and what we send have deadlines |
//! | a stream is not read | its feed is bounded, and the reader is told what it lost |
//!
//! ```no_run
//! use belljar_web::{Backend, Settings, TokenFile, Web};
//!
//! # fn start(backend: impl Backend) -> Result<(), belljar_web::StartError> {
//! let tokens = TokenFile::of("/var/lib/belljar".as_ref());
//! let running = Web::start(Settings::default(), tokens, backend)?;
//! println!("{}", running.url());
//! # Ok(())
//! # }
//! ```

mod attempts;
mod backend;
mod fan;
mod feed;
mod kept_sessions;
mod pages;
mod remote;
mod serve;
mod sessions;
mod settings;
mod start;
mod tls;
mod tokens;

pub use backend::{Backend, Caller};
pub use fan::Fan;
pub use feed::{Feed, Gone};
pub use pages::Pages;
pub use remote::{Credentials, Remote, RemoteError};
pub use serve::{Access, SessionView, WEB_ROUTES, WebRoute, openapi};
pub use settings::{Limits, Settings, Tls};
pub use start::{Running, StartError, Web};
pub use tls::TlsError;
pub use tokens::{NewToken, Role, TokenError, TokenFile, TokenId, TokenRecord, TokenText};
