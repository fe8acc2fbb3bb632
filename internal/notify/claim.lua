-- claim.lua claims the first items of outboxes that are due. A claimed item is not claimed again until its claim ends;
-- settle.lua renews that of a command.
--
-- KEYS  1-7 see outbox.lua
-- ARGV  1-2 see outbox.lua   3 duration of a claim, ms   4 unique token of these claims
--       5 limit of posts in flight, of which apps in trouble may have half   6 limit of those to an app; one in trouble has 1
--       then for each app with posts in flight: the app, and their number
-- Returns {next, ...}
--         next: ms until the next box that is not due yet; -1 if there is none
--         then for each claim its app, repo, number, failed attempts, and the item as JSON

local lasts, claim, left, each = tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
local left_troubled = math.max(1, math.floor(left / 2))

local function in_trouble(app) return redis.call('HEXISTS', troubled, app) == 1 end

local in_hand, passed = {}, redis.call('HLEN', troubled)
for i = 7, #ARGV, 2 do
  local app, n = ARGV[i], tonumber(ARGV[i + 1])
  in_hand[app], passed, left = n, passed + 1, left - n
  if in_trouble(app) then left_troubled = left_troubled - n end
end

local reply = {-1}
local ends = number(now + lasts)
-- Only apps in trouble or with posts in flight can be passed over, so left + passed apps are enough. Apps with the fewest
-- posts in flight come first, then those that have waited longest; otherwise a few apps with long queues would take every
-- free slot.
local list, place = redis.call('ZRANGEBYSCORE', apps, '-inf', number(now), 'LIMIT', 0, left + passed), {}
for i, app in ipairs(list) do place[app] = i end
table.sort(list, function(a, b)
  local in_a, in_b = in_hand[a] or 0, in_hand[b] or 0
  if in_a ~= in_b then return in_a < in_b end
  return place[a] < place[b]
end)
for _, app in ipairs(list) do
  if left <= 0 then break end
  local limited = in_trouble(app)
  local most, free = each, left
  if limited then most, free = 1, math.min(left, left_troubled) end
  local room = math.min(free, most - (in_hand[app] or 0))
  if room > 0 then
    for _, repo in ipairs(redis.call('ZRANGEBYSCORE', due_of(app), '-inf', number(now), 'LIMIT', 0, room)) do
      local n, item = head_of(app, repo)
      if n then
        redis.call('ZADD', due_of(app), ends, repo)
        redis.call('HSET', claims, name_of(app, repo), claim)
        for _, part in ipairs({app, repo, n, redis.call('HGET', tries, name_of(app, repo)) or '0', item}) do
          reply[#reply + 1] = part
        end
        left = left - 1
        if limited then left_troubled = left_troubled - 1 end
      else -- the box was deleted
        forget(app, repo)
      end
    end
    index(app)
  end
end
local following = redis.call('ZRANGEBYSCORE', apps, '(' .. number(now), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
if following[2] then reply[1] = tonumber(following[2]) - now end
return reply
