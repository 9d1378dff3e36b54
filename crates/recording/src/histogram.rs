//! Log-linear buckets of call durations, as in HdrHistogram.
//!
//! Buckets 0 to 63 are one nanosecond each. Above, each power of two has 64 buckets of equal width,
//! so the middle of a bucket is off by 0.8 % at most. The last bucket has all longer calls. The
//! buckets are part of the recording's format: writer and reader use the same ones.

/// Buckets of a power of two.
const BUCKETS_PER_OCTAVE: u64 = 64;
/// Bits of them.
const SUB_BITS: u32 = BUCKETS_PER_OCTAVE.trailing_zeros();
/// Number of powers of two with buckets above the first 64 nanoseconds: up to 2^42 ns, an hour and
/// a quarter.
const OCTAVES: u32 = 36;
/// Number of buckets of a power of two, and below the first one.
pub const OCTAVE: u32 = BUCKETS_PER_OCTAVE as u32;
/// Number of buckets.
pub const BUCKETS: usize = (BUCKETS_PER_OCTAVE as usize) * (OCTAVES as usize + 1);

/// The bucket of a duration.
#[must_use]
#[inline]
pub const fn bucket(ns: u64) -> usize {
    if ns < BUCKETS_PER_OCTAVE {
        return ns as usize;
    }
    let octave = ns.ilog2() - SUB_BITS;
    if octave >= OCTAVES {
        return BUCKETS - 1;
    }
    // The first bit is the octave's; the six behind it are the bucket in it.
    ((octave as u64 + 1) * BUCKETS_PER_OCTAVE + ((ns >> octave) - BUCKETS_PER_OCTAVE)) as usize
}

/// The shortest duration of a bucket, in nanoseconds. An index past the end means the last bucket.
#[must_use]
pub const fn low(bucket: usize) -> u64 {
    let last = if bucket < BUCKETS {
        bucket
    } else {
        BUCKETS - 1
    };
    let bucket = last as u64;
    if bucket < BUCKETS_PER_OCTAVE {
        return bucket;
    }
    (BUCKETS_PER_OCTAVE + bucket % BUCKETS_PER_OCTAVE) << (bucket / BUCKETS_PER_OCTAVE - 1)
}

/// The duration that represents a bucket: its middle, at most 1/128 from each duration in it. The
/// last bucket is represented by the longest call.
#[must_use]
pub const fn middle(bucket: usize) -> u64 {
    let from = low(bucket);
    let width = if bucket < BUCKETS_PER_OCTAVE as usize {
        1
    } else {
        1 << (from.ilog2() - SUB_BITS)
    };
    from + width / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_each_other_and_hold_what_they_say() {
        for at in 0..BUCKETS {
            assert_eq!(bucket(low(at)), at);
            if at > 0 {
                assert!(low(at) > low(at - 1));
                assert_eq!(bucket(low(at) - 1), at - 1);
            }
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
        assert_eq!((low(usize::MAX), bucket(0)), (low(BUCKETS - 1), 0));
    }

    #[test]
    fn the_middle_of_a_bucket_is_off_by_one_part_in_a_hundred_at_most() {
        let mut ns: u64 = 1;
        while ns < 1 << 42 {
            for ns in [ns, ns + 1, ns + ns / 3, 2 * ns - 1] {
                let error = middle(bucket(ns)).abs_diff(ns);
                assert!(error * 100 <= ns, "{ns}: {error}");
            }
            ns *= 2;
        }
    }
}
