-- settle.lua records the outcome of sending the first item of a box.
--
-- KEYS  1-6 see outbox.lua
-- ARGV  1-2 see outbox.lua   3 app   4 repo   5 number of the item   6 the claim
--       7 "done": remove it   "failed": retry after the delay, count an attempt, keep the error   "back": retry after the delay
--         "dead": move it to the dead letters   "kept": the claim lasts for another delay
--       8 delay, ms   9 reason of a dead letter; "accepted" if it is done because the app accepted it; "asked" if it failed
--         and the app named the delay   10 error   11 attempts
--       12 entry of the item's result
-- Returns "settled"   for "kept": the claim is still ours, even if its item was evicted
--         "gone"      the first item is another one: this one was settled or evicted. If the claim is still ours, the
--                     first item is due after the delay; else nothing changed
--         "not ours"  the claim ended and another process has claimed the item; nothing changed, except that "done" removes
--                     it. The next item is then not sent before the other claim is settled or ends

-- accepted records when an app accepted the notification of a result: of the last 1,000, for a week after the last.
local function accepted(app, entry)
  recovered(app)
  redis.call('ZADD', sent_to(app), number(now), entry)
  redis.call('ZREMRANGEBYRANK', sent_to(app), 0, -1001)
  redis.call('PEXPIRE', sent_to(app), 604800000)
end

local app, repo, n, claim, what = ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local later = number(now + tonumber(ARGV[8]))
local ours = redis.call('HGET', claims, name_of(app, repo)) == claim
local same = head_of(app, repo) == n

if not ours then
  if not same then return 'gone' end
  if what == 'done' then
    pop(app, repo, redis.call('ZSCORE', due_of(app), repo) or number(now))
    if ARGV[9] == 'accepted' then accepted(app, ARGV[12]) end
  end
  index(app)
  return 'not ours'
end

if same and what == 'dead' then bury(app, repo, ARGV[9], ARGV[10], ARGV[11]) end
if same and what == 'failed' then
  local first, asked = redis.call('HINCRBY', tries, name_of(app, repo), 1) == 1, ARGV[9] == 'asked'
  redis.call('HSET', errors_of(app), repo, number(now) .. (asked and '! ' or ' ') .. ARGV[10])
  -- Only first failures count as trouble of the app, so that a box that fails alone is not hastened by each success of
  -- another one.
  if first and not asked then redis.call('HSETNX', errors_of(app), '', number(now)) end
end
if same and (what == 'done' or what == 'dead') then
  pop(app, repo, number(now))
else
  redis.call('ZADD', due_of(app), later, repo)
end
if what == 'kept' then
  index(app)
  return 'settled'
end
redis.call('HDEL', claims, name_of(app, repo))
if same and what == 'done' and ARGV[9] == 'accepted' then accepted(app, ARGV[12]) end
index(app)
return same and 'settled' or 'gone'
