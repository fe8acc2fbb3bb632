-- settle.lua records the outcome of sending the first item of a box.
--
-- KEYS  1-7 see outbox.lua
-- ARGV  1-2 see outbox.lua   3 app   4 repo   5 number of the item   6 the claim
--       7 "done": remove it   "failed": retry after the delay, count an attempt, keep the error   "back": retry after the delay
--         "dead": move it to the dead letters   "kept": the claim lasts for another delay
--       8 delay, ms   9 reason of a dead letter; "accepted" if it is done because the app accepted it; "asked" if it failed
--         and the app named the delay   10 error   11 attempts
--       12 entry of the item's result
-- Returns 1, or 0 without changing anything: the claim is settled, or has ended and another process has the item. If the item
--         was evicted meanwhile, the claim ends or is kept, and the box's new first item is due after the delay.

-- accepted records when an app accepted the notification of a result: of the last 1,000, for a week after the last.
local function accepted(app, entry)
  recovered(app)
  redis.call('ZADD', sent_to(app), number(now), entry)
  redis.call('ZREMRANGEBYRANK', sent_to(app), 0, -1001)
  redis.call('PEXPIRE', sent_to(app), 604800000)
end

local app, repo, n, claim, what, reason = ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7], ARGV[9]
local box, later = name_of(app, repo), number(now + tonumber(ARGV[8]))
if redis.call('HGET', claims, box) ~= claim then return 0 end

local same = head_of(app, repo) == n
if same and what == 'dead' then bury(app, repo, reason, ARGV[10], ARGV[11]) end
if same and what == 'failed' then
  local first, asked = redis.call('HINCRBY', tries, box, 1) == 1, reason == 'asked'
  redis.call('HSET', errors_of(app), repo, number(now) .. (asked and '! ' or ' ') .. ARGV[10])
  -- Only first failures count as trouble of the app, so that a box that fails alone is not hastened by each success of
  -- another one.
  if first and not asked then redis.call('HSETNX', troubled, app, number(now)) end
end
if same and (what == 'done' or what == 'dead') then
  pop(app, repo, number(now))
else
  redis.call('ZADD', due_of(app), later, repo)
end
if what ~= 'kept' then redis.call('HDEL', claims, box) end
if same and reason == 'accepted' then accepted(app, ARGV[12]) end
index(app)
return 1
