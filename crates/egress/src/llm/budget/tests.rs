use super::*;

fn wish(input: u64, output: u64) -> Wish {
    Wish {
        input,
        output,
        answers: 1,
        rates: Some((PicoUsd(1), PicoUsd(10))),
    }
}

fn used(input: u64, output: u64) -> Tokens {
    Tokens {
        input,
        output,
        ..Tokens::default()
    }
}

#[tokio::test]
async fn answers_are_cut_to_what_is_left_and_then_refused() {
    let budget = LlmBudget::new(None, Some(PicoUsd(125)));
    let first = budget.reserve(wish(10, 5)).await.unwrap();
    assert_eq!(first.output(), 5);
    first.settle("m", used(10, 5), PicoUsd(60), Source::Reported);
    let second = budget.reserve(wish(10, 50)).await.unwrap();
    assert_eq!(second.output(), 5);
    second.settle("m", used(10, 5), PicoUsd(60), Source::Reported);
    assert_eq!(
        budget.reserve(wish(1, 1)).await.err(),
        Some(Exhausted::Cost)
    );
    assert_eq!(budget.usage().total.cost, PicoUsd(120));
    let tokens = LlmBudget::new(Some(3), None);
    assert_eq!(
        tokens.reserve(wish(3, 1)).await.err(),
        Some(Exhausted::Tokens)
    );
    assert!(tokens.reserve(wish(3, 0)).await.is_ok());
}

#[tokio::test]
async fn a_call_waits_for_what_others_hold() {
    let budget = LlmBudget::new(Some(100), None);
    let first = budget.reserve(wish(50, 50)).await.unwrap();
    assert!(budget.try_reserve(wish(10, 10)).is_none());
    let waiting = tokio::spawn({
        let budget = Arc::clone(&budget);
        async move { budget.reserve(wish(10, 10)).await.map(|held| held.output()) }
    });
    tokio::task::yield_now().await;
    first.settle("m", used(5, 5), PicoUsd(0), Source::Reported);
    assert_eq!(waiting.await.unwrap(), Ok(10));
}

#[tokio::test]
async fn a_reservation_that_is_lost_counts_as_used() {
    let budget = LlmBudget::new(Some(100), None);
    drop(budget.reserve(wish(50, 10)).await.unwrap());
    assert_eq!(budget.usage().total.tokens.total(), 60);
    assert_eq!(budget.usage().total.estimated, 1);
    budget.reserve(wish(30, 10)).await.unwrap().release();
    assert_eq!(budget.reserve(wish(30, 50)).await.unwrap().output(), 10);
}

#[tokio::test]
async fn parts_of_a_budget_never_come_to_more_than_the_whole() {
    let whole = LlmBudget::new(Some(100), None);
    let held = whole.reserve(wish(10, 10)).await.unwrap();
    let part = whole.carve(Some(50), None);
    let rest = whole.carve(Some(50), None);
    // 20 are held by the call and 50 are the other part's.
    assert_eq!(rest.reserve(wish(30, 0)).await.map(|_| ()), Ok(()));
    assert_eq!(
        rest.reserve(wish(1, 0)).await.err(),
        Some(Exhausted::Tokens)
    );
    held.release();
    part.reserve(wish(5, 0))
        .await
        .unwrap()
        .settle("m", used(5, 0), PicoUsd(0), Source::Reported);
    let late = part.reserve(wish(5, 5)).await.unwrap();
    part.close();
    assert_eq!(
        part.reserve(wish(1, 0)).await.err(),
        Some(Exhausted::Tokens)
    );
    // 20 released and 35 of the part's; its last call still holds 10.
    assert!(whole.try_reserve(wish(56, 0)).unwrap().is_err());
    late.settle("m", used(2, 0), PicoUsd(0), Source::Reported);
    whole.reserve(wish(63, 0)).await.unwrap().release();
    whole.charge(13, PicoUsd(1));
    assert!(whole.try_reserve(wish(51, 0)).unwrap().is_err());
    whole.reserve(wish(50, 0)).await.unwrap().release();
}

#[tokio::test]
async fn a_cap_holds_whatever_is_left_and_is_nobody_elses() {
    let whole = LlmBudget::new(Some(100), None);
    whole.cap(Some(30), None);
    let part = whole.carve(Some(60), None);
    let mut held = whole.reserve(wish(10, 10)).await.unwrap();
    assert_eq!(held.extend(21), Err(Exhausted::Tokens));
    held.settle("m", used(10, 5), PicoUsd(0), Source::Reported);
    assert_eq!(whole.reserve(wish(5, 50)).await.unwrap().output(), 10);
    assert_eq!(
        whole.reserve(wish(1, 0)).await.err(),
        Some(Exhausted::Tokens)
    );
    part.reserve(wish(60, 0)).await.unwrap().release();
}

#[tokio::test]
async fn what_the_last_of_a_family_leaves_comes_to_the_nearest_that_is_open() {
    let first = LlmBudget::new(Some(100), None);
    let second = first.carve(Some(60), None);
    let third = second.carve(Some(40), None);
    second.close();
    third.close();
    first.reserve(wish(100, 0)).await.unwrap().release();
}

#[tokio::test]
async fn more_can_be_set_aside_while_there_is_more() {
    let budget = LlmBudget::new(Some(100), None);
    let mut held = budget.reserve(wish(10, 10)).await.unwrap();
    assert_eq!(held.extend(90), Ok(()));
    assert_eq!(held.extend(91), Err(Exhausted::Tokens));
    held.settle("m", used(10, 90), PicoUsd(0), Source::Reported);
    assert_eq!(
        budget.reserve(wish(0, 1)).await.err(),
        Some(Exhausted::Tokens)
    );
}
