//! HTTP methods and statuses, the few that are used.

use std::fmt;

/// How a route is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// Reads; changes nothing.
    Get,
    /// Changes something.
    Post,
}

impl Method {
    /// The word on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The status of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Status(u16);

impl Status {
    /// Done.
    pub const OK: Self = Self(200);
    /// Done, and something new exists.
    pub const CREATED: Self = Self(201);
    /// Not a request that can be understood.
    pub const BAD_REQUEST: Self = Self(400);
    /// Understood and refused: a decision, with its code.
    pub const FORBIDDEN: Self = Self(403);
    /// No such path, or no such worker.
    pub const NOT_FOUND: Self = Self(404);
    /// The path exists, the method does not.
    pub const METHOD_NOT_ALLOWED: Self = Self(405);
    /// The request did not arrive whole in time.
    pub const REQUEST_TIMEOUT: Self = Self(408);
    /// Understood, and not possible as things stand.
    pub const CONFLICT: Self = Self(409);
    /// A body without a length.
    pub const LENGTH_REQUIRED: Self = Self(411);
    /// A body too long.
    pub const PAYLOAD_TOO_LARGE: Self = Self(413);
    /// An `Expect` other than `100-continue`.
    pub const EXPECTATION_FAILED: Self = Self(417);
    /// Asked too often.
    pub const TOO_MANY_REQUESTS: Self = Self(429);
    /// A head too long.
    pub const HEADERS_TOO_LARGE: Self = Self(431);
    /// Our fault.
    pub const INTERNAL_ERROR: Self = Self(500);
    /// Not now.
    pub const UNAVAILABLE: Self = Self(503);
    /// No decision in time.
    pub const GATEWAY_TIMEOUT: Self = Self(504);
    /// Not HTTP/1.0 or 1.1.
    pub const VERSION_NOT_SUPPORTED: Self = Self(505);

    /// The status with that number, known or not.
    pub(crate) const fn from_wire(code: u16) -> Self {
        Self(code)
    }

    /// The number.
    #[must_use]
    pub const fn code(self) -> u16 {
        self.0
    }

    /// Whether the request was granted.
    #[must_use]
    pub const fn is_success(self) -> bool {
        self.0 >= 200 && self.0 < 300
    }

    /// The words after the number.
    #[must_use]
    pub const fn phrase(self) -> &'static str {
        match self.0 {
            200 => "OK",
            201 => "Created",
            400 => "Bad Request",
            403 => "Forbidden",
            404 => "Not Found",
            405 => "Method Not Allowed",
            408 => "Request Timeout",
            409 => "Conflict",
            411 => "Length Required",
            413 => "Content Too Large",
            417 => "Expectation Failed",
            429 => "Too Many Requests",
            431 => "Request Header Fields Too Large",
            500 => "Internal Server Error",
            503 => "Service Unavailable",
            504 => "Gateway Timeout",
            505 => "HTTP Version Not Supported",
            _ => "Unknown",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.0, self.phrase())
    }
}
