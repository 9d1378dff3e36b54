//! How long calls took, in buckets of which each is at most 1/64 wide: log-linear, as HdrHistogram
//! has them.
//!
//! Bucket 0 to 63 are so many nanoseconds; from there on each power of two has 64 buckets of the
//! same width, so that the middle of a bucket is off by 0.8 % at most. The last bucket is all that
//! is longer. It is a part of the recording's format: writer and reader count by the same buckets.

/// Buckets of a power of two.
const BUCKETS_PER_OCTAVE: u64 = 64;
/// Bits of them.
const SUB_BITS: u32 = BUCKETS_PER_OCTAVE.trailing_zeros();
/// Powers of two that have buckets, behind the first 64 nanoseconds: to 2^42 ns, an hour and a
/// quarter.
const OCTAVES: u32 = 36;
/// Buckets of a power of two, and of what comes before the first one.
pub const OCTAVE: u32 = BUCKETS_PER_OCTAVE as u32;
/// How many buckets there are.
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

/// The shortest duration of a bucket, nanoseconds; that of the last for one that there is not.
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

/// Value that stands for the durations of a bucket: its middle, at most 1/128 from each of them.
/// Beyond the last bucket's begin only the longest call is known.
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
