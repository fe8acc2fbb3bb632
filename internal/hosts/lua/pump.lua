-- pump.lua follows host.lua. It queues repositories, or gives up their reservations, and reserves free permits for waiters.
--
-- ARGV  5 for each repository push, retry or poll to queue it, or '' to give its reservation up; then its name
--
-- Returns as enter.lua, with an empty reason.

local c, woken = credential(ARGV[4]), {}
for i = 5, #ARGV, 2 do
  unreserve(c, ARGV[i + 1])
  if ARGV[i] ~= '' then enqueue(c, ARGV[i], ARGV[i + 1]) end
end
serve(woken)
schedule()
return reply('', c, woken)
