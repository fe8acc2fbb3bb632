-- clear.lua follows host.lua. It lifts the blocks of a credential, or of the host and all its credentials. Slow start and the
-- limit of concurrent requests remain. Waiters are served once all processes have forgotten the blocks.
--
-- ARGV  5 1 for the host and all credentials, else 0   6 how long a process remembers a block, ms
--
-- Returns {now, {reason, end of the block, credential or '', …}}: what was lifted.

local lifted, names = {}, {[ARGV[4]] = ARGV[5] == '0' or nil}

local function note(reason, ends, name)
  if not reason then return end
  for _, value in ipairs({reason, ends, name}) do lifted[#lifted + 1] = value end
end

if ARGV[5] == '1' then
  local reason, ends = host_block()
  note(reason, ends, '')
  if reason then
    store(state, 'open', '0', 'failures', '0', 'trips', '0', 'blocked', '0', 'limit', number(math.min(4, maximum)), 'slow', number(maximum))
    redis.call('HDEL', state, 'refused')
    host.open, host.blocked = 0, 0
  end
  local sets = {':limited'}
  for i, class in ipairs(CLASSES) do sets[i + 1] = ':waiting:' .. class end
  for _, key in ipairs(sets) do
    for _, name in ipairs(redis.call('ZRANGE', state .. key, 0, 999)) do names[name] = true end
  end
end
for name in pairs(names) do
  local c = credential(name)
  if c.blocked > now then
    note('rate limit', c.blocked, name)
  elseif c.next > now then
    note('quota', c.next, name)
  end
  if redis.call('EXISTS', c.key) == 1 then
    store(c.key, 'blocked', '0', 'strikes', '0', 'limited', '0', 'gap', '0', 'gap_ends', '0', 'next', '0')
  end
  redis.call('ZREM', state .. ':limited', name)
  for _, class in ipairs(CLASSES) do
    redis.call('ZADD', state .. ':waiting:' .. class, 'XX', number(now + tonumber(ARGV[6])), name)
  end
end
schedule()
return {now, lifted}
