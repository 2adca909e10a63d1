//! Dates of FTP, in UTC.

/// Year, month, day, hour, minute, second of seconds since 1970 (the algorithm of Hinnant's `civil_from_days`).
pub(crate) fn civil(seconds: i64) -> (i64, i64, i64, i64, i64, i64) {
    let (days, rest) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let z = days + 719_468;
    let (era, day_of_era) = (z.div_euclid(146_097), z.rem_euclid(146_097));
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 {
        shifted + 3
    } else {
        shifted - 9
    };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day, rest / 3600, rest / 60 % 60, rest % 60)
}

/// `YYYYMMDDHHMMSS.sss` (RFC 3659).
pub(crate) fn stamp((seconds, nanoseconds): (i64, u32)) -> String {
    let (year, month, day, hour, minute, second) = civil(seconds);
    let millis = nanoseconds / 1_000_000;
    format!("{year:04}{month:02}{day:02}{hour:02}{minute:02}{second:02}.{millis:03}")
}

/// Seconds since 1970 and nanoseconds of `YYYYMMDDHHMMSS[.fraction]` (RFC 3659); `None` for anything else.
pub(crate) fn parse(text: &str) -> Option<(i64, u32)> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let is_number = |it: &str| it.bytes().all(|it| it.is_ascii_digit());
    if whole.len() != 14 || !is_number(whole) || !is_number(fraction) {
        return None;
    }
    let number = |from: usize, to: usize| whole.get(from..to)?.parse::<i64>().ok();
    let (year, month, day) = (number(0, 4)?, number(4, 6)?, number(6, 8)?);
    let (hour, minute, second) = (number(8, 10)?, number(10, 12)?, number(12, 14)?);
    let is_date = (1..=12).contains(&month) && (1..=31).contains(&day);
    if !is_date || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let digits: String = fraction
        .chars()
        .chain("000000000".chars())
        .take(9)
        .collect();
    let seconds = days(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second;
    Some((seconds, digits.parse().ok()?))
}

/// Days since 1970 (the algorithm of Hinnant's `days_from_civil`).
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let (era, year_of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let shifted = if month > 2 { month - 3 } else { month + 9 };
    let day_of_year = (153 * shifted + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// As `ls -l` has it: with the time of day for the last half year, else with the year.
pub(crate) fn listed(seconds: i64, now: i64) -> String {
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let (year, month, day, hour, minute, _) = civil(seconds);
    let month = usize::try_from(month - 1)
        .ok()
        .and_then(|it| MONTHS.get(it));
    let month = month.unwrap_or(&"Jan");
    if (0..15_552_000).contains(&(now - seconds)) {
        format!("{month} {day:2} {hour:02}:{minute:02}")
    } else {
        format!("{month} {day:2}  {year}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(civil(0), (1970, 1, 1, 0, 0, 0));
        assert_eq!(civil(951_782_400), (2000, 2, 29, 0, 0, 0));
        assert_eq!(civil(-1), (1969, 12, 31, 23, 59, 59));
        assert_eq!(stamp((1_700_000_000, 999_999_999)), "20231114221320.999");
        for seconds in [0, 951_782_400, 1_700_000_000, -1, 4_102_444_799] {
            assert_eq!(
                parse(&stamp((seconds, 7_000_000))),
                Some((seconds, 7_000_000))
            );
        }
        assert_eq!(parse("20231114221320"), Some((1_700_000_000, 0)));
        for bad in [
            "",
            "2023",
            "20231314221320",
            "20231114221320.x",
            "+0231114221320",
            "20231114246060",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
        assert_eq!(listed(1_700_000_000, 1_700_000_100), "Nov 14 22:13");
        assert_eq!(listed(1_700_000_000, 1_800_000_000), "Nov 14  2023");
    }
}
